//! `kill -9` during writes, and a full disk: acknowledged writes survive, and no object is partly written.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nearhop_tests::cluster::{names, version, version_number};
use nearhop_tests::http::{Answer, Connection, Request, Target};
use nearhop_tests::server::{Options, Server, start, start_process};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const WRITERS: usize = 8;
const OBJECTS: usize = 10_000;
/// Acknowledged writes after which the server is killed.
const KILL_AFTER: u64 = 1_500;
const NAMESPACE: &str = "/api/v1/namespaces/crash";

/// The last acknowledged state of an object.
#[derive(Clone, Debug)]
struct Acknowledged {
    version: u64,
    /// How many times it had been written.
    round: u64,
}

/// Acknowledged writes by path.
type Log = Arc<Mutex<BTreeMap<String, Acknowledged>>>;

/// The content that a writer sends in a round; it is long, so that a partial write would show.
fn content(name: &str, round: u64) -> String {
    format!("{name}/{round}/{}", "x".repeat(400))
}

/// Every tenth object is a Service, which also takes an address from the allocator.
fn body(number: usize, name: &str, round: u64) -> (&'static str, Value) {
    let metadata = json!({"name": name, "annotations": {"content": content(name, round)}});
    match number % 10 {
        0 => ("services", json!({"metadata": metadata, "spec": {"ports": [{"port": 80}]}})),
        _ => ("configmaps", json!({"metadata": metadata})),
    }
}

fn note(log: &Log, path: &str, version: u64, round: u64) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.insert(path.to_owned(), Acknowledged { version, round });
}

/// Creates objects and changes each once, until all are done or the connection fails.
async fn write(mut connection: Connection, writer: usize, log: Log, count: Arc<AtomicU64>) {
    for number in (writer..OBJECTS).step_by(WRITERS) {
        let name = format!("o{number}");
        let (plural, first) = body(number, &name, 0);
        let path = format!("{NAMESPACE}/{plural}/{name}");
        let create = Request::new("POST", &format!("{NAMESPACE}/{plural}")).json(&first);
        let Ok(answer) = connection.send(create).await else { return };
        assert_eq!(answer.status, 201, "{}", answer.text());
        note(&log, &path, version_number(&answer.json()), 0);
        count.fetch_add(1, Ordering::Relaxed);
        let second =
            json!({"metadata": {"annotations": {"content": content(&name, 1)}}}).to_string();
        let patch = Request::new("PATCH", &path).bytes("application/merge-patch+json", second);
        let Ok(answer) = connection.send(patch).await else { return };
        assert_eq!(answer.status, 200, "{}", answer.text());
        note(&log, &path, version_number(&answer.json()), 1);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lists and watches ConfigMaps the way client libraries do: from the list's version on, and from a new list whenever
/// that fails. Keeps the versions by name.
async fn inform(target: Target, cache: Arc<Mutex<BTreeMap<String, String>>>) {
    let path = format!("{NAMESPACE}/configmaps");
    loop {
        let Ok(list) = target.get(&path).await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let list = list.json();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let name = |o: &Value| o["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let listed = items.iter().map(|o| (name(o), version(o))).collect();
        *cache.lock().unwrap_or_else(PoisonError::into_inner) = listed;
        let from = format!("{path}?watch=true&resourceVersion={}", version(&list));
        let Ok(mut watch) = target.open(Request::new("GET", &from)).await else { continue };
        while let Some(event) = watch.event(Duration::from_secs(60)).await {
            let object = &event["object"];
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => cache.insert(name(object), version(object)),
                Some("DELETED") => cache.remove(&name(object)),
                _ => break,
            };
        }
    }
}

/// All objects of both kinds, by path.
async fn stored(target: &Target) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for plural in ["configmaps", "services"] {
        let list = target.get(&format!("{NAMESPACE}/{plural}")).await?.expect(200)?.json();
        for object in list["items"].as_array().context("no items")? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            all.insert(format!("{NAMESPACE}/{plural}/{name}"), object.clone());
        }
    }
    Ok(all)
}

/// The round of an object's content; fails if no writer sent this content.
fn round_of(object: &Value) -> Result<u64> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let found = object["metadata"]["annotations"]["content"].as_str().unwrap_or_default();
    (0..2)
        .find(|round| content(name, *round) == found)
        .with_context(|| format!("partly written: {object}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_a_kill() -> Result<()> {
    let data = tempfile::tempdir()?;
    let mut options = Options { data_dir: Some(data.path().into()), ..Options::default() };
    let mut server = start_process(&options)?;
    let target = server.admin.clone();
    // The server restarts at the same address.
    options.listen = Some(target.address.clone());
    target
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "crash"}}))
        .await?
        .expect(201)?;
    let cache = Arc::new(Mutex::new(BTreeMap::new()));
    let informer = tokio::spawn(inform(target.clone(), cache.clone()));

    let (log, count) = (Log::default(), Arc::new(AtomicU64::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(target.connect().await?, writer, log.clone(), count.clone()));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while count.load(Ordering::Relaxed) < KILL_AFTER && Instant::now() < deadline {
        sleep(Duration::from_millis(1)).await;
    }
    server.kill();
    writers.join_all().await;
    let acknowledged = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(count.load(Ordering::Relaxed) >= KILL_AFTER, "too few writes before the kill");
    assert!(acknowledged.len() < OBJECTS, "all objects were written before the kill");

    let server = start_process(&options)?;
    let target = server.admin.clone();
    let stored = stored(&target).await?;
    let mut newest = 0;
    for (path, object) in &stored {
        round_of(object)?;
        newest = newest.max(version_number(object));
        assert!(object["metadata"]["uid"].is_string(), "{path}");
    }
    for (path, write) in &acknowledged {
        let object =
            stored.get(path).with_context(|| format!("{path} was acknowledged and is lost"))?;
        assert!(version_number(object) >= write.version, "{path}: {write:?} {object}");
        assert!(round_of(object)? >= write.round, "{path}: {write:?}");
        newest = newest.max(write.version);
    }
    // Each writer had at most one unacknowledged write.
    assert!(
        stored.len() <= acknowledged.len() + WRITERS,
        "{} {}",
        stored.len(),
        acknowledged.len()
    );

    let after =
        json!({"metadata": {"name": "after", "annotations": {"content": content("after", 0)}}});
    let made = target.post(&format!("{NAMESPACE}/configmaps"), &after).await?.expect(201)?.json();
    assert!(version_number(&made) > newest, "versions never go back");
    let service = json!({"metadata": {"name": "fresh"}, "spec": {"ports": [{"port": 80}]}});
    let fresh = target.post(&format!("{NAMESPACE}/services"), &service).await?.expect(201)?.json();
    let taken = |s: &Value| s["spec"]["clusterIP"] == fresh["spec"]["clusterIP"];
    assert!(!stored.values().any(taken), "an address was allocated twice");
    catches_up(&target, &cache).await?;
    informer.abort();
    Ok(())
}

/// Waits until the informer's cache equals a list.
async fn catches_up(target: &Target, cache: &Mutex<BTreeMap<String, String>>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    while Instant::now() < deadline {
        let list = target.get(&format!("{NAMESPACE}/configmaps")).await?.expect(200)?.json();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let known = cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let same = |o: &Value| {
            known.get(o["metadata"]["name"].as_str().unwrap_or_default()) == Some(&version(o))
        };
        if known.len() == items.len() && items.iter().all(same) {
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
    bail!("the informer did not catch up")
}

/// A file system so small that a few objects fill it, mounted where only this test sees it.
fn mount_small(directory: &Path, kibibytes: u32) -> Result<()> {
    let size = format!("size={kibibytes}k");
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))
        .context("mount a tmpfs")
}

/// Repeats a GET request until the answer has this status.
async fn until_status(admin: &Target, path: &str, status: u16) -> Result<Answer> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = admin.get(path).await?;
        if answer.status == status {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            bail!("{path} stays at {}: {}", answer.status, answer.text());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Starts a server on the data of one that is still stopping.
async fn start_when_free(options: &Options) -> Result<Server> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match start(options).await {
            Err(error) if format!("{error:#}").contains("in use") && Instant::now() < deadline => {
                sleep(Duration::from_millis(50)).await;
            }
            started => return started,
        }
    }
}

async fn fill_and_make_room(directory: &Path) -> Result<()> {
    const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str, size: usize| json!({"metadata": {"name": name}, "data": {"v": "x".repeat(size)}});
    let data_dir = Some(directory.to_owned());
    let server = start(&Options { data_dir: data_dir.clone(), ..Options::default() }).await?;
    let admin = &server.admin;
    admin.post(COLLECTION, &map("before", 10)).await?.expect(201)?;
    admin.get("/readyz").await?.expect(200)?;
    // Another file fills the disk.
    let ballast = directory.join("ballast");
    let mut file = std::fs::File::create(&ballast)?;
    while file.write_all(&[1; 4096]).is_ok() {}

    let refused = admin.post(COLLECTION, &map("refused", 100_000)).await?.expect(500)?.json();
    assert_eq!((&refused["kind"], &refused["code"]), (&json!("Status"), &json!(500)));
    let message = refused["message"].as_str().unwrap_or_default();
    let place = directory.join("objects.redb").display().to_string();
    assert!(message.contains(&place) && message.contains("No space left"), "{message}");
    // The server refuses a small write as well: it does not know what the disk has stored.
    admin.post(COLLECTION, &map("small", 1)).await?.expect(500)?;
    let ready = admin.get("/readyz").await?.expect(500)?.text();
    assert!(ready.contains("[-]disk failed") && ready.contains("No space left"), "{ready}");
    let anonymous = admin.with_token(None).get("/readyz").await?.expect(500)?.text();
    assert!(anonymous.contains("[-]disk failed: reason withheld\n"), "{anonymous}");
    // Reads work without a restart.
    admin.get("/livez").await?.expect(200)?;
    assert_eq!(names(&admin.get(COLLECTION).await?.expect(200)?.json()), ["before"]);

    std::fs::remove_file(&ballast)?;
    drop(file);
    until_status(admin, "/readyz", 200).await?;
    admin.post(COLLECTION, &map("refused", 100_000)).await?.expect(201)?;
    admin.delete(&format!("{COLLECTION}/before")).await?.expect(200)?;
    let version = version(&admin.get(COLLECTION).await?.json());
    drop(server);
    let again = start_when_free(&Options { data_dir, ..Options::default() }).await?;
    let list = again.admin.get(COLLECTION).await?.expect(200)?.json();
    assert_eq!(names(&list), ["refused"]);
    assert!(version_number(&list) >= version.parse()?);
    Ok(())
}

#[test]
fn a_full_disk_stops_writes_and_nothing_else_until_there_is_room() {
    nearhop_net::sandbox::run(
        "a_full_disk_stops_writes_and_nothing_else_until_there_is_room",
        || {
            let scratch = tempfile::tempdir().expect("a directory");
            mount_small(scratch.path(), 4096).expect("a small file system");
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime
                .block_on(fill_and_make_room(scratch.path()))
                .expect("the server recovers from a full disk");
        },
    );
}
