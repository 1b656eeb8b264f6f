//! Tests of the order of status writes, and of dropped writes.

use k8s_openapi::api::core::v1::{PodCondition, PodIP};
use tokio::time::{sleep, timeout};

use super::*;
use crate::fake_api::{Requests, refusal, start};

const POD: &str = "/api/v1/namespaces/n/pods/a";

fn key() -> PodKey {
    PodKey { namespace: "n".to_owned(), name: "a".to_owned(), uid: "u".to_owned() }
}

/// The Pod as the API server returns it.
fn there(uid: &str) -> (u16, Value) {
    let meta = json!({ "name": "a", "namespace": "n", "uid": uid });
    (200, json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta }))
}

async fn until_asked(asked: &Requests, line: &str, times: usize) {
    let long = Duration::from_secs(30);
    let enough = async {
        while asked.count(line) < times {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(long, enough).await.unwrap_or_else(|_| panic!("{line}: {:?}", asked.all()));
}

#[tokio::test]
async fn a_conflict_ends_the_update_only_if_the_pod_was_replaced() {
    let status = || StatusUpdate::Patch(Box::default());
    for (uid, taken) in [("u", false), ("other", true)] {
        let (api, _) = start(move |line, _| match line.starts_with("GET ") {
            true => there(uid),
            false => refusal(409),
        });
        let updates = [status(), StatusUpdate::Last(Box::default()), StatusUpdate::Delete];
        for update in updates {
            assert_eq!(write(&api, &key(), &update).await.is_ok(), taken, "{uid} {update:?}");
        }
    }
    let (api, _) = start(|line, _| refusal(if line.starts_with("GET ") { 404 } else { 409 }));
    write(&api, &key(), &status()).await.unwrap();
}

#[test]
fn a_rejected_status_is_dropped_but_never_a_deletion() {
    let why = ApiFailure::NotFound { what: "no".to_owned() };
    let refuse = |update: StatusUpdate, times: u32| {
        let first = PendingUpdate { update, refusals: 0 };
        (0..times).try_fold(first, |pending, _| pending.refused(&why)).map(|pending| pending.update)
    };
    assert!(matches!(
        refuse(StatusUpdate::Patch(Box::default()), REFUSALS - 1),
        Some(StatusUpdate::Patch(_))
    ));
    assert!(refuse(StatusUpdate::Patch(Box::default()), REFUSALS).is_none());
    assert!(matches!(
        refuse(StatusUpdate::Last(Box::default()), REFUSALS - 1),
        Some(StatusUpdate::Last(_))
    ));
    assert!(matches!(
        refuse(StatusUpdate::Last(Box::default()), 3 * REFUSALS),
        Some(StatusUpdate::Delete)
    ));
}

#[tokio::test]
async fn a_deletion_is_retried_after_conflicts_and_rejections() {
    let (api, asked) = start(|line, before| match line.split(' ').next() {
        Some("DELETE") if before == 0 => refusal(409),
        Some("DELETE") if before == 1 => refusal(422),
        Some("PATCH") => refusal(422),
        _ => there("u"),
    });
    let writer = StatusWriter::start(api);
    writer.send(key(), StatusUpdate::Last(Box::default()));
    until_asked(&asked, &format!("DELETE {POD}"), 3).await;
    let patches = asked.count(&format!("PATCH {POD}/status"));
    assert_eq!(patches, usize::try_from(REFUSALS).unwrap());
}

#[tokio::test]
async fn a_permanently_rejected_status_is_dropped() {
    let (api, asked) = start(|line, _| match line.contains("/pods/a/") {
        true => refusal(400),
        false => there("u"),
    });
    let writer = StatusWriter::start(api);
    writer.send(key(), StatusUpdate::Patch(Box::default()));
    let patch = format!("PATCH {POD}/status");
    until_asked(&asked, &patch, usize::try_from(REFUSALS).unwrap()).await;
    // The next update is written only after the dropped one.
    let other = PodKey { name: "b".to_owned(), ..key() };
    writer.send(other, StatusUpdate::Patch(Box::default()));
    until_asked(&asked, "PATCH /api/v1/namespaces/n/pods/b/status", 1).await;
    assert_eq!(asked.count(&patch), usize::try_from(REFUSALS).unwrap());
}

#[test]
fn the_newest_update_wins_and_failures_do_not_block_others() {
    let key = |name: &str| PodKey {
        namespace: "n".to_owned(),
        name: name.to_owned(),
        uid: String::new(),
    };
    let update = |phase: &str| {
        let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
        StatusUpdate::Patch(Box::new(status))
    };
    let now = Instant::now();
    let mut waiting = UpdateQueue::new();
    waiting.put(key("a"), update("1"), now);
    waiting.put(key("b"), update("1"), now);
    let (first, old) = waiting.take(now).unwrap();
    waiting.end(first, old, Err(ApiFailure::Conflict { what: "a".to_owned() }), now);
    waiting.put(key("a"), update("2"), now);
    let (second, other) = waiting.take(now).unwrap();
    assert_eq!(second, key("b"));
    waiting.end(second, other, Ok(()), now);
    assert!(waiting.take(now).is_none(), "a waits for its back-off");
    let later = now + BACKOFF.base;
    let (last, pending) = waiting.take(later).unwrap();
    let StatusUpdate::Patch(status) = &pending.update else { panic!("the update is a status") };
    assert_eq!((&last, status.phase.as_deref()), (&key("a"), Some("2")));
    waiting.end(last, pending, Ok(()), later);
    assert!(waiting.take(later).is_none());
}

#[test]
fn the_patch_clears_fields_that_a_merge_would_keep() {
    let ready = PodCondition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    };
    let status = PodStatus {
        conditions: Some(vec![ready]),
        pod_ips: Some(vec![PodIP { ip: "10.0.0.1".to_owned() }]),
        ..PodStatus::default()
    };
    let patch = patch("u", &status);
    assert_eq!(patch["metadata"]["uid"], "u");
    assert_eq!(patch["status"]["podIPs"][1]["$patch"], "replace");
    let condition = patch["status"]["conditions"][0].as_object().unwrap();
    assert_eq!((&condition["reason"], &condition["message"]), (&Value::Null, &Value::Null));
}
