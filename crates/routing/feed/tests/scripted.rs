//! The feed with API servers that stop sending, refuse requests, lose state or send invalid data.

mod support;

use std::time::{Duration, Instant};

use nearhop_feed::{Lists, Options};
use support::scripted::{Answer, Scripted, end, line, page, pod, refusal, status};
use support::{Listener, names, pods};

fn with_short_timeouts(lists: Lists) -> Options {
    let short = Duration::from_millis(150);
    let mut options = pods(lists);
    options.watch.stall = short;
    options.watch.request_timeout = short;
    options.watch.page_size = 2;
    options
}

fn added(names: &[&str]) -> String {
    names.iter().zip(1..).map(|(name, version)| line("ADDED", &pod(name, version))).collect()
}

fn is_list(path: &str) -> bool {
    !path.contains("watch=true")
}

#[tokio::test]
async fn a_silent_watch_is_resumed_without_a_list() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Quiet(added(&["pod-0"]) + &end(5)),
        1 => Answer::Quiet(line("ADDED", &pod("pod-1", 6))),
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until_pods(&names("pod", 2)).await;
    seen.until_status(|status| status.stalls >= 2 && status.watches >= 3).await;
    assert_eq!(seen.feed.status()[0].lists, 1);
    let requests = server.requests();
    assert!(requests[1].ends_with("resourceVersion=5"), "{requests:?}");
    assert!(requests[2].ends_with("resourceVersion=6"), "{requests:?}");
}

#[tokio::test]
async fn the_feed_uses_pages_if_streaming_lists_are_refused() {
    let server = Scripted::start(|_, path| match path {
        path if path.contains("sendInitialEvents") => refusal(422, "Invalid"),
        path if path.contains("continue=more") => page(7, "", &[pod("pod-2", 3)]),
        path if is_list(path) => page(7, "more", &[pod("pod-0", 1), pod("pod-1", 2)]),
        path if path.ends_with("resourceVersion=7") => {
            Answer::Ended(line("ERROR", &status(410, "Expired")))
        }
        _ => Answer::Nothing,
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until("a second list", |seen| seen.lists.len() == 2).await;
    assert_eq!(seen.lists, [None, Some(names("pod", 3))]);
    let streaming = server.requests().iter().filter(|p| p.contains("sendInitialEvents")).count();
    assert_eq!(streaming, 1, "after the refusal the feed requests no streaming list");
}

#[tokio::test]
async fn the_feed_uses_pages_if_streaming_lists_are_ignored() {
    let server = Scripted::start(|_, path| match path {
        path if path.contains("sendInitialEvents") => Answer::Quiet(added(&["pod-0", "gone"])),
        path if is_list(path) => page(7, "", &[pod("pod-0", 1)]),
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until("a list", |seen| seen.lists.len() == 1).await;
    let named = Some(names("pod", 1));
    assert_eq!(seen.lists, [named], "objects arrived before, so the list contains all names");
    assert_eq!(seen.pods, names("pod", 1));
}

#[tokio::test]
async fn an_expired_continue_token_restarts_the_list_without_pages() {
    let server = Scripted::start(|number, path| match path {
        path if path.contains("continue=more") => refusal(410, "Expired"),
        path if path.contains("limit=2") => page(7, "more", &[pod("gone", 1), pod("pod-1", 2)]),
        path if is_list(path) => {
            assert_eq!(number, 2);
            page(9, "", &[pod("pod-0", 8), pod("pod-1", 2)])
        }
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Paged));
    seen.until("a list", |seen| seen.lists.len() == 1).await;
    assert_eq!(seen.pods, names("pod", 2));
    assert_eq!(seen.lists, [Some(names("pod", 2))]);
    seen.until_status(|status| status.watches > 0).await;
    assert!(server.requests()[3].ends_with("resourceVersion=9"));
}

#[tokio::test]
async fn a_streaming_list_omits_objects_deleted_during_the_list() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Broken(added(&["pod-0"])),
        1 => Answer::Quiet(
            added(&["pod-0", "pod-1", "gone"]) + &line("DELETED", &pod("gone", 4)) + &end(4),
        ),
        _ => Answer::Nothing,
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until("a list", |seen| seen.lists.len() == 1).await;
    assert_eq!(seen.lists, [Some(names("pod", 2))]);
    assert_eq!(seen.gone, ["gone"]);
}

#[tokio::test]
async fn invalid_data_is_reported_and_ignored() {
    let broken = r#"{"metadata":{"namespace":"default","name":"pod-9","resourceVersion":"8"},{"#;
    let twice = r#"{"metadata":{"namespace":"default","name":"x","name":"pod-1"}}"#;
    let server = Scripted::start(move |_, path| match path {
        path if is_list(path) => {
            page(7, "", &[pod("pod-0", 1), twice.to_owned(), "5".to_owned(), pod("pod-2", 2)])
        }
        path if path.ends_with("resourceVersion=7") => {
            Answer::Ended("noise\n".to_owned() + &line("ADDED", broken))
        }
        path if path.ends_with("resourceVersion=8") => {
            Answer::Quiet(line("FUTURE", &pod("pod-0", 9)) + &line("ADDED", &pod("pod-3", 10)))
        }
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Paged));
    seen.until_pods(&names("pod", 4)).await;
    let about: Vec<&str> =
        seen.problems.iter().map(|problem| problem.split(": ").next().unwrap()).collect();
    assert_eq!(
        about,
        [
            "object of kind Pod",
            "object of kind Pod",
            "object among pods",
            "Pod default/pod-9",
            "Pod default/pod-0",
        ]
    );
}

#[tokio::test]
async fn the_feed_relists_after_the_version_decreases() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Quiet(
            added(&["pod-0", "gone"])
                + &end(50)
                + &line("BOOKMARK", r#"{"metadata":{"resourceVersion":"20"}}"#),
        ),
        _ => Answer::Quiet(added(&["pod-0"]) + &end(20)),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until("a second list", |seen| seen.lists.len() == 2).await;
    assert_eq!(seen.pods, names("pod", 1));
}

#[tokio::test]
async fn an_unanswered_list_is_retried() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Nothing,
        _ => Answer::Quiet(added(&["pod-0"]) + &end(5)),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until_status(|status| status.error.is_some()).await;
    seen.until_pods(&names("pod", 1)).await;
    assert_eq!(seen.feed.status()[0].error, None);
    assert!(
        server.requests()[1].contains("sendInitialEvents"),
        "a timeout does not disable streaming lists"
    );
}

#[tokio::test]
async fn the_feed_waits_for_retry_after() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Whole(429, "Retry-After: 1\r\n", "Too many requests".to_owned()),
        _ => Answer::Quiet(added(&["pod-0"]) + &end(5)),
    })
    .await;
    let began = Instant::now();
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until_pods(&names("pod", 1)).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_slow_receiver_delays_the_list_without_errors() {
    let many: Vec<String> = (0..5000).map(|i| pod(&format!("pod-{i}"), i)).collect();
    let server = Scripted::start(move |_, path| match path {
        path if is_list(path) => page(7, "", &many),
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Paged));
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(seen.feed.status()[0].lists, 0, "the list is incomplete until the receiver reads");
    seen.until_pods(&names("pod", 5000)).await;
    assert_eq!(seen.lists, [None], "the delay causes no second list");
}

#[tokio::test]
async fn refused_and_broken_watches_are_resumed() {
    let server = Scripted::start(|number, path| match path {
        _ if number % 2 == 0 => refusal(500, "InternalError"),
        path if path.contains("sendInitialEvents") => Answer::Ended(added(&["pod-0"]) + &end(1)),
        path if path.ends_with("resourceVersion=1") => Answer::Broken(added(&["", "pod-1"])),
        path if path.ends_with("resourceVersion=2") => {
            Answer::Ended(added(&["", "", "pod-2"]) + &line("ERROR", &status(500, "")))
        }
        path if path.ends_with("resourceVersion=3") => Answer::Ended(added(&["", "", "", "pod-3"])),
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until_pods(&names("pod", 4)).await;
    assert_eq!(seen.lists, [None], "there is no second list");
}

#[tokio::test]
async fn a_truncated_line_is_received_again() {
    let whole = line("ADDED", &pod("pod-1", 6));
    let server = Scripted::start(move |number, path| match number {
        0 => Answer::Ended(added(&["pod-0"]) + &end(5)),
        1 => Answer::Ended(whole[..whole.len() - 3].to_owned()),
        _ if path.ends_with("resourceVersion=5") => Answer::Ended(whole.trim_end().to_owned()),
        _ => Answer::Quiet(String::new()),
    })
    .await;
    let mut seen = Listener::start(&server.client, with_short_timeouts(Lists::Streaming));
    seen.until_pods(&names("pod", 2)).await;
    assert_eq!(seen.problems, [""; 0]);
}
