//! The requests: path and parameters of lists and watches. Nothing is sent here.

use std::time::Duration;

use form_urlencoded::Serializer;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use kube::client::Body;
use nearhop_api::Version;
use nearhop_core::Kind;

use crate::options::Selectors;

/// What is asked of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query<'a> {
    /// A list; see [`Page`].
    List(Page<'a>),
    /// A list in the form of a watch, which then goes on as one.
    StreamingList {
        /// How long.
        timeout: Duration,
    },
    /// What changes after a version.
    Watch {
        /// The last version that is known.
        after: &'a Version,
        /// How long.
        timeout: Duration,
    },
}

/// A part of a list.
///
/// None of them gives a resourceVersion: that is a consistent read. With `0` the server may
/// answer from a cache that is behind, older than what a watch has already shown; a list that
/// says what is gone must never be older than what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page<'a> {
    /// The first so many.
    First(u32),
    /// So many more, after the place that a token stands for.
    Next(u32, &'a str),
    /// Everything at once.
    Whole,
}

/// Builds the request.
pub(crate) fn request(kind: Kind, selectors: &Selectors, query: Query<'_>) -> http::Request<Body> {
    let group = if kind.api_version() == "v1" { "api" } else { "apis" };
    let (version, resource) = (kind.api_version(), kind.resource());
    let uri = format!("/{group}/{version}/{resource}?{}", parameters(selectors, query));
    http::Request::get(uri)
        .header(ACCEPT, "application/json")
        // A compressed stream would be held back until a block is full.
        .header(ACCEPT_ENCODING, "identity")
        .body(Body::empty())
        .expect("a path of ours and an encoded query are a URI")
}

fn parameters(selectors: &Selectors, query: Query<'_>) -> String {
    let mut out = Serializer::new(String::new());
    if let Some(labels) = &selectors.labels {
        out.append_pair("labelSelector", labels);
    }
    if let Some(fields) = &selectors.fields {
        out.append_pair("fieldSelector", fields);
    }
    match query {
        Query::List(page) => append_page(&mut out, page),
        Query::StreamingList { timeout } => {
            append_watch(&mut out, timeout);
            out.append_pair("sendInitialEvents", "true");
            // The server demands it. No version beside it: the newest state there is.
            out.append_pair("resourceVersionMatch", "NotOlderThan");
        }
        Query::Watch { after, timeout } => {
            append_watch(&mut out, timeout);
            out.append_pair("resourceVersion", after.as_str());
        }
    }
    out.finish()
}

fn append_page(out: &mut Serializer<'_, String>, page: Page<'_>) {
    let limit = match page {
        Page::First(limit) | Page::Next(limit, _) => Some(limit),
        Page::Whole => None,
    };
    if let Some(limit) = limit {
        out.append_pair("limit", &limit.to_string());
    }
    if let Page::Next(_, token) = page {
        out.append_pair("continue", token);
    }
}

fn append_watch(out: &mut Serializer<'_, String>, timeout: Duration) {
    out.append_pair("watch", "true");
    out.append_pair("allowWatchBookmarks", "true");
    // 0 would mean the server's own idea of a timeout.
    out.append_pair("timeoutSeconds", &timeout.as_secs().max(1).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Kind, selectors: &Selectors, query: Query<'_>, uri: &str) {
        assert_eq!(request(kind, selectors, query).uri().to_string(), uri);
    }

    #[test]
    fn lists_are_asked_for_without_a_version() {
        let all = Selectors::default();
        let list = Query::List(Page::First(500));
        check(Kind::Pod, &all, list, "/api/v1/pods?limit=500");
        let list = Query::List(Page::Next(500, "a+b/c="));
        check(Kind::Node, &all, list, "/api/v1/nodes?limit=500&continue=a%2Bb%2Fc%3D");
        check(Kind::Service, &all, Query::List(Page::Whole), "/api/v1/services?");
    }

    #[test]
    fn watches_are_asked_for_with_bookmarks_and_an_end() {
        let all = Selectors::default();
        let timeout = Duration::from_millis(1_500);
        let list = Query::StreamingList { timeout };
        let uri = "/api/v1/namespaces?watch=true&allowWatchBookmarks=true&timeoutSeconds=1\
                   &sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        check(Kind::Namespace, &all, list, uri);
        let after = &Version::from("17");
        let watch = Query::Watch { after, timeout: Duration::ZERO };
        let uri = "/apis/discovery.k8s.io/v1/endpointslices?watch=true&allowWatchBookmarks=true\
                   &timeoutSeconds=1&resourceVersion=17";
        check(Kind::Slice, &all, watch, uri);
    }

    #[test]
    fn selectors_are_encoded() {
        let some = Selectors {
            labels: Some("a in (b,c),!d".to_owned()),
            fields: Some("spec.nodeName=n1,status.phase!=Failed".to_owned()),
        };
        let uri = "/api/v1/pods?labelSelector=a+in+%28b%2Cc%29%2C%21d\
                   &fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%21%3DFailed";
        check(Kind::Pod, &some, Query::List(Page::Whole), uri);
    }
}
