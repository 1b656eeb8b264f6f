//! Routes of the HTTP server, and their requests and replies.
//!
//! There are no path parameters, no request bodies and no middleware: use a framework for those.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};

pub(super) type Body = http_body_util::Full<hyper::body::Bytes>;
type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

const PLAIN: &str = "text/plain; charset=utf-8";

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The path, with its leading slash.
    pub path: String,
    /// The query string after the question mark; empty if there is none.
    pub query: String,
    /// The token of `Authorization: Bearer`. The server does not check it.
    pub bearer: Option<String>,
    /// The client's address; `None` if the connection has already ended.
    pub peer: Option<SocketAddr>,
}

impl Ask {
    fn of<B>(request: &Request<B>, peer: Option<SocketAddr>) -> Self {
        let authorization = request.headers().get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let bearer = authorization
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim().to_owned());
        Self {
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            bearer,
            peer,
        }
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub code: StatusCode,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A reply with this content type, without further headers.
    pub fn new(code: StatusCode, content_type: &'static str, body: impl Into<String>) -> Self {
        Self { code, content_type, headers: Vec::new(), body: body.into() }
    }

    /// Plain text.
    pub fn text(code: StatusCode, body: impl Into<String>) -> Self {
        Self::new(code, PLAIN, body)
    }

    /// JSON.
    pub fn json(code: StatusCode, body: impl Into<String>) -> Self {
        Self::new(code, "application/json", body)
    }

    /// The same reply with one more header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.code;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response.headers_mut().extend(self.headers);
        response
    }
}

/// A path and its handler.
#[derive(Clone)]
pub struct Route {
    path: &'static str,
    /// Whether it also serves the paths below.
    below: bool,
    /// Whether it serves every method, not only GET and HEAD, for which hyper omits the body.
    any_method: bool,
    handler: Arc<dyn Fn(Ask) -> Pending + Send + Sync>,
}

impl Route {
    /// Serves GET at exactly this path with a handler that returns at once.
    pub fn at(
        path: &'static str,
        handler: impl Fn(&Ask) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::at_async(path, move |ask| ready(handler(&ask)))
    }

    /// Serves GET at exactly this path with an asynchronous handler. The time limit of the
    /// connection also limits the handler.
    pub fn at_async<F>(
        path: &'static str,
        handler: impl Fn(Ask) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let handler = Arc::new(move |ask| Box::pin(handler(ask)) as Pending);
        Self { path, below: false, any_method: false, handler }
    }

    /// The same route for all paths below it, too; for `/` these are all paths.
    #[must_use]
    pub fn and_below(self) -> Self {
        Self { below: true, ..self }
    }

    /// The same route for every method: some load balancers probe with OPTIONS.
    #[must_use]
    pub fn any_method(self) -> Self {
        Self { any_method: true, ..self }
    }

    fn matches(&self, path: &str) -> bool {
        path == self.path
            || self.below
                && (self.path == "/"
                    || path.strip_prefix(self.path).is_some_and(|rest| rest.starts_with('/')))
    }
}

/// All routes of a server.
#[derive(Clone)]
pub(super) struct Routes(Arc<[Route]>);

impl Routes {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        Self(routes.into())
    }

    /// The route with the longest matching path serves the request.
    pub(super) async fn answer<B>(
        &self,
        request: &Request<B>,
        peer: Option<SocketAddr>,
    ) -> Response<Body> {
        let ask = Ask::of(request, peer);
        let matching = self.0.iter().filter(|route| route.matches(&ask.path));
        let Some(route) = matching.max_by_key(|route| route.path.len()) else {
            return self.not_here(&ask.path).into_response();
        };
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if !route.any_method && !reads {
            let text = "only GET and HEAD are allowed here\n";
            let refusal = Answer::text(StatusCode::METHOD_NOT_ALLOWED, text);
            return refusal.with(ALLOW, HeaderValue::from_static("GET, HEAD")).into_response();
        }
        (route.handler)(ask).await.into_response()
    }

    fn not_here(&self, path: &str) -> Answer {
        let mut text = format!("{path:?} is not served here; paths:\n");
        for route in self.0.iter() {
            text = text + route.path + "\n";
        }
        Answer::text(StatusCode::NOT_FOUND, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &'static str) -> Route {
        Route::at(path, move |_| Answer::text(StatusCode::OK, path))
    }

    #[test]
    fn and_below_matches_whole_path_segments() {
        let route = route("/debug").and_below();
        for (path, expected) in
            [("/debug", true), ("/debug/a/b", true), ("/debugger", false), ("/", false)]
        {
            assert_eq!(route.matches(path), expected, "{path}");
        }
        let everything = self::route("/").and_below();
        assert!(everything.matches("/") && everything.matches("/a/b") && everything.matches("*"));
        assert!(!self::route("/").matches("/a"), "only the exact path");
    }

    #[test]
    fn bearer_scheme_is_case_insensitive() {
        let bearer = |value: &str| {
            Ask::of(&Request::get("/a?b=c").header(AUTHORIZATION, value).body(()).unwrap(), None)
                .bearer
        };
        assert_eq!(bearer("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(bearer("bearer  abc "), Some("abc".to_owned()));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("Bearer"), None);
        let ask = Ask::of(&Request::get("/a?b=c").body(()).unwrap(), None);
        assert_eq!((ask.path.as_str(), ask.query.as_str(), ask.bearer), ("/a", "b=c", None));
    }
}
