//! The requests: path and parameters of lists and watches. This module does not send them.

use std::time::Duration;

use super::{Selectors, Target};
use form_urlencoded::Serializer;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use kube::client::Body;
use nearhop_api::Version;

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query<'a> {
    /// A list; see [`Page`].
    List(Page<'a>),
    /// A list in the form of a watch, which then continues as a watch.
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
/// No page gives a resourceVersion: that is a consistent read. With `0` the API server may answer
/// from a cache that is older than what a watch has already shown, and objects that the list lacks
/// would count as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page<'a> {
    /// The first page, of this size.
    First(u32),
    /// The next page of this size, after a continue token.
    Next(u32, &'a str),
    /// Everything at once.
    Whole,
}

/// Builds the request.
pub(crate) fn request(target: &Target, query: Query<'_>) -> http::Request<Body> {
    let uri = format!("{}?{}", target.path, parameters(&target.selectors, query));
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

    fn check(path: &str, selectors: &Selectors, query: Query<'_>, parameters: &str) {
        let target = Target { selectors: selectors.clone(), ..Target::new("r", path.to_owned()) };
        assert_eq!(request(&target, query).uri().to_string(), format!("{path}?{parameters}"));
    }

    #[test]
    fn list_queries_have_no_version() {
        let all = Selectors::default();
        let list = Query::List(Page::First(500));
        check("/api/v1/pods", &all, list, "limit=500");
        let list = Query::List(Page::Next(500, "a+b/c="));
        check("/api/v1/nodes", &all, list, "limit=500&continue=a%2Bb%2Fc%3D");
        check("/api/v1/services", &all, Query::List(Page::Whole), "");
    }

    #[test]
    fn watch_queries_request_bookmarks_and_a_timeout() {
        let all = Selectors::default();
        let timeout = Duration::from_millis(1_500);
        let list = Query::StreamingList { timeout };
        let uri = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1\
                   &sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        check("/api/v1/namespaces", &all, list, uri);
        let after = &Version::from("17");
        let watch = Query::Watch { after, timeout: Duration::ZERO };
        let uri = "watch=true&allowWatchBookmarks=true\
                   &timeoutSeconds=1&resourceVersion=17";
        check("/apis/discovery.k8s.io/v1/endpointslices", &all, watch, uri);
    }

    #[test]
    fn selectors_are_encoded() {
        let some = Selectors {
            labels: Some("a in (b,c),!d".to_owned()),
            fields: Some("spec.nodeName=n1,status.phase!=Failed".to_owned()),
        };
        let uri = "labelSelector=a+in+%28b%2Cc%29%2C%21d\
                   &fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%21%3DFailed";
        check("/api/v1/pods", &some, Query::List(Page::Whole), uri);
    }
}
