//! Tests of the store, with and without a disk.

use std::sync::Arc;

use serde_json::{Value, json};

use super::disk::DiskWrite;
use super::{Change, Content, Durability, Expect, Name, ObjectRef, Store, Write, WriteError};

fn no_fields(_: &str, _: &Value) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn store(directory: Option<&std::path::Path>) -> Store {
    let durability = directory.map_or(Durability::Ephemeral, |d| Durability::Directory(d.into()));
    Store::open(&durability, 100, no_fields).unwrap()
}

fn put(name: &str, text: &str, expect: Expect) -> Write {
    let object = json!({"metadata": {"name": name, "uid": name}, "data": text});
    let content = Arc::new(Content::new(&object, Vec::new()));
    Write {
        storage: "things".into(),
        name: Name::new("", name),
        expect,
        change: Change::Put(content),
        within: None,
    }
}

fn delete(name: &str, expect: Expect) -> Write {
    Write { change: Change::Delete, ..put(name, "", expect) }
}

fn texts(snapshot: &super::Snapshot) -> Vec<Value> {
    snapshot.objects.iter().map(|object| object.to_value("")["data"].clone()).collect()
}

#[tokio::test]
async fn a_write_with_a_wrong_expectation_changes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    for store in [store(None), store(Some(scratch.path()))] {
        let first = store.write(vec![put("a", "1", Expect::Absent)]).await.unwrap();
        let again = store.write(vec![put("a", "2", Expect::Absent)]).await;
        assert_eq!(again.unwrap_err(), WriteError::Exists);
        let stale = store.write(vec![put("a", "2", Expect::Version(99))]).await;
        assert_eq!(stale.unwrap_err(), WriteError::Conflict);
        let gone = store.write(vec![delete("b", Expect::Version(1))]).await;
        assert_eq!(gone.unwrap_err(), WriteError::Gone);
        // All of a batch, or nothing.
        let half = vec![put("b", "1", Expect::Absent), put("a", "2", Expect::Absent)];
        assert_eq!(store.write(half).await.unwrap_err(), WriteError::Exists);
        assert_eq!(store.version(), first[0].version);
        assert_eq!(texts(&store.list("things", None)), ["1"]);
    }
}

#[tokio::test]
async fn lists_at_an_older_version_undo_the_log() {
    let store = store(None);
    store.write(vec![put("a", "1", Expect::Absent), put("b", "1", Expect::Absent)]).await.unwrap();
    let then = store.version();
    let a = store.get("things", &Name::new("", "a")).unwrap();
    store.write(vec![put("a", "2", Expect::Version(a.version))]).await.unwrap();
    let b = store.get("things", &Name::new("", "b")).unwrap();
    store.write(vec![delete("b", Expect::Version(b.version))]).await.unwrap();
    store.write(vec![put("c", "1", Expect::Absent)]).await.unwrap();
    assert_eq!(texts(&store.list("things", None)), ["2", "1"]);
    assert_eq!(texts(&store.list_at("things", None, then).unwrap()), ["1", "1"]);
    store.compact();
    assert!(store.list_at("things", None, then).is_err());
    assert!(store.events_after("things", then, 10).is_err());
    assert!(store.events_after("things", store.version(), 10).unwrap().events.is_empty());
}

#[tokio::test]
async fn reopened_store_has_its_objects_and_continues_versions() {
    let scratch = tempfile::tempdir().unwrap();
    let (version, life) = {
        let store = store(Some(scratch.path()));
        store.write(vec![put("a", "1", Expect::Absent)]).await.unwrap();
        store.write(vec![put("b", "1", Expect::Absent)]).await.unwrap();
        let b = store.get("things", &Name::new("", "b")).unwrap();
        store.write(vec![delete("b", Expect::Version(b.version))]).await.unwrap();
        (store.version(), store.life().to_owned())
    };
    // The store's thread closes the file after the store is dropped.
    let durability = Durability::Directory(scratch.path().into());
    let reopened = loop {
        match Store::open(&durability, 100, no_fields) {
            Err(super::OpenError::InUse(_)) => tokio::task::yield_now().await,
            other => break other.unwrap(),
        }
    };
    assert_eq!(reopened.version(), version, "a deletion increases the version");
    assert_eq!(reopened.life(), life);
    assert_eq!(texts(&reopened.list("things", None)), ["1"]);
    let next = reopened.write(vec![put("c", "1", Expect::Absent)]).await.unwrap();
    assert!(next[0].version > version);
}

#[tokio::test]
async fn reopened_disk_has_only_what_clients_saw() {
    let scratch = tempfile::tempdir().unwrap();
    let mut state = super::State::new(100);
    let mut disk = super::disk::Disk::open(scratch.path()).unwrap();
    disk.load(&mut state, no_fields).unwrap();
    let content =
        |text: &str| Content::new(&json!({"metadata": {"uid": "u"}, "data": text}), Vec::new());
    let key = |name: &str| ObjectRef { storage: "things".into(), name: Name::new("", name) };
    let (old, new) = (content("old"), content("new"));
    fn put<'a>(key: &'a ObjectRef, version: u64, content: &'a Content) -> DiskWrite<'a> {
        DiskWrite { key, content: Some((version, content.tail())) }
    }
    let (a, b, c) = (key("a"), key("b"), key("c"));
    disk.commit(2, [put(&a, 1, &old), put(&b, 2, &old)].into_iter()).unwrap();
    for (name, version) in [("a", 1), ("b", 2)] {
        state.put("things", Name::new("", name), version, Arc::new(content("old")));
    }
    // The disk wrote these and then reported an error: no client saw them.
    let unseen = [put(&a, 3, &new), DiskWrite { key: &b, content: None }, put(&c, 5, &new)];
    disk.commit(5, unseen.into_iter()).unwrap();
    disk.reopen(state.version, &state.all()).unwrap();
    drop(disk);
    let reopened = store(Some(scratch.path()));
    assert_eq!(reopened.version(), 2);
    assert_eq!(texts(&reopened.list("things", None)), ["old", "old"]);
}

#[tokio::test]
async fn a_file_changed_by_another_process_is_not_written() {
    let scratch = tempfile::tempdir().unwrap();
    let mut state = super::State::new(100);
    let mut disk = super::disk::Disk::open(scratch.path()).unwrap();
    disk.load(&mut state, no_fields).unwrap();
    let path = scratch.path().join("objects.redb");
    std::fs::rename(&path, scratch.path().join("elsewhere")).unwrap();
    let other = store(Some(scratch.path()));
    other.write(vec![put("a", "1", Expect::Absent)]).await.unwrap();
    drop(other);
    let refused = loop {
        match disk.reopen(state.version, &state.all()) {
            Err(why) if why.contains("already open") => tokio::task::yield_now().await,
            refused => break refused.unwrap_err(),
        }
    };
    assert!(refused.contains("changed by another process"), "{refused}");
}

#[tokio::test]
async fn creates_need_an_active_namespace() {
    let store = store(None);
    let inside = || Write { within: Some("n".into()), ..put("a", "1", Expect::Absent) };
    assert_eq!(store.write(vec![inside()]).await.unwrap_err(), WriteError::Namespace);
    let namespace = |deleting: bool, expect| {
        let mut object = json!({"metadata": {"name": "n", "uid": "n"}});
        if deleting {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        let content = Arc::new(Content::new(&object, Vec::new()));
        Write { storage: "namespaces".into(), change: Change::Put(content), ..put("n", "", expect) }
    };
    let made = store.write(vec![namespace(false, Expect::Absent)]).await.unwrap();
    store.write(vec![inside()]).await.unwrap();
    store.write(vec![namespace(true, Expect::Version(made[0].version))]).await.unwrap();
    let late = Write { within: Some("n".into()), ..put("b", "1", Expect::Absent) };
    assert_eq!(store.write(vec![late]).await.unwrap_err(), WriteError::Namespace);
}

#[tokio::test]
async fn the_log_is_bounded_by_size() {
    let store = Store::open(&Durability::Ephemeral, 1_000_000, no_fields).unwrap();
    let big = "x".repeat(1 << 20);
    let mut version = store.write(vec![put("a", &big, Expect::Absent)]).await.unwrap()[0].version;
    let first = version;
    for _ in 0..80 {
        let written = store.write(vec![put("a", &big, Expect::Version(version))]).await.unwrap();
        version = written[0].version;
    }
    assert!(store.events_after("things", first, 1000).is_err(), "80 MiB are not kept");
    assert!(store.events_after("things", version - 10, 1000).is_ok());
}
