//! A watch task that panics, as with a defect in the feed: the body of a response panics while the
//! feed reads it.

mod support;

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use kube::Client;
use kube::client::Body;
use nearhop_feed::Lists;
use support::scripted::{end, line, pod};
use support::{Listener, names, pods};
use tower::service_fn;

/// A response body that has a text and then panics, or never ends.
struct Script {
    text: Option<String>,
    then: Then,
}

#[derive(Clone, Copy)]
enum Then {
    Panic,
    Nothing,
}

impl hyper::body::Body for Script {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        match (self.text.take(), self.then) {
            (Some(text), _) => Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from(text))))),
            (None, Then::Panic) => panic!("a defect during the stream"),
            (None, Then::Nothing) => Poll::Pending,
        }
    }
}

/// A client whose responses come from `script`, which gets the number of the request.
fn client(script: impl Fn(usize) -> Script + Send + Sync + 'static) -> Client {
    let requests = AtomicUsize::new(0);
    let service = service_fn(move |_: http::Request<Body>| {
        let body = script(requests.fetch_add(1, Ordering::Relaxed));
        ready(Ok::<_, Infallible>(http::Response::new(body)))
    });
    Client::new(service, "default")
}

fn list(names: &[&str]) -> String {
    let added = names.iter().zip(1..).map(|(name, version)| line("ADDED", &pod(name, version)));
    added.collect::<String>() + &end(9)
}

#[tokio::test]
async fn a_watch_that_panics_restarts_with_a_list() {
    let client = client(|number| match number {
        0 => Script { text: Some(list(&["pod-0", "gone"])), then: Then::Panic },
        _ => Script { text: Some(list(&["pod-0", "pod-1"])), then: Then::Nothing },
    });
    let mut seen = Listener::start(&client, pods(Lists::Streaming));
    seen.until("a second list", |seen| seen.lists.len() == 2).await;
    assert_eq!(seen.pods, names("pod", 2), "the list removes the deleted Pod");
    let status = &seen.feed.status()[0];
    assert_eq!((status.panics, status.lists, &status.error), (1, 2, &None));
}

#[tokio::test]
async fn a_watch_that_panics_repeatedly_reports_no_contact() {
    let open = Arc::new(AtomicUsize::new(0));
    let gate = open.clone();
    let client = client(move |number| match number {
        0 => Script { text: Some(list(&["pod-0"])), then: Then::Panic },
        // The server responds, but the list never completes.
        _ if gate.load(Ordering::Relaxed) == 0 => {
            Script { text: Some(line("ADDED", &pod("pod-0", 1))), then: Then::Panic }
        }
        _ => Script { text: Some(list(&["pod-0", "pod-1"])), then: Then::Nothing },
    });
    let mut seen = Listener::start(&client, pods(Lists::Streaming));
    seen.until_status(|status| status.panics == 1).await;
    let heard = seen.feed.status()[0].last_contact.expect("the first list is complete");
    seen.until_status(|status| status.panics == 3).await;
    let status = &seen.feed.status()[0];
    assert_eq!(status.last_contact, Some(heard), "the incomplete lists do not count as contact");
    let error = status.error.as_deref().unwrap_or_default();
    assert!(error.contains("a defect during the stream"), "{error}");
    open.store(1, Ordering::Relaxed);
    seen.until_pods(&names("pod", 2)).await;
    assert!(seen.feed.status()[0].last_contact > Some(heard));
}
