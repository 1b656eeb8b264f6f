//! An answer before it is written to the wire.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::Value;

use crate::status::ApiError;

/// The bytes of an answer, whole or as they come.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Body,
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Compact JSON with the newline that Kubernetes ends it with.
pub(crate) fn json_body(value: &Value) -> Bytes {
    let mut text = serde_json::to_vec(value).expect("a value is written to memory");
    text.push(b'\n');
    text.into()
}

impl Reply {
    pub(crate) fn new(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
        Self { code, content_type, headers: Vec::new(), body }
    }

    pub(crate) fn json(code: u16, value: &Value) -> Self {
        Self::new(code, JSON, json_body(value))
    }

    pub(crate) fn json_bytes(code: u16, body: impl Into<Bytes>) -> Self {
        Self::new(code, JSON, body)
    }

    pub(crate) fn text(code: u16, body: impl Into<Bytes>) -> Self {
        Self::new(code, TEXT, body)
    }

    /// JSON that is made while it is sent.
    pub(crate) fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        let frames = chunks.map(|chunk| Ok(Frame::data(chunk)));
        let body = StreamBody::new(frames).boxed_unsync();
        Self { code: 200, content_type: JSON, headers: Vec::new(), body }
    }

    pub(crate) fn error(error: &ApiError) -> Self {
        let mut reply = if error.plain {
            Self::text(error.code, error.message.clone())
        } else {
            Self::json(error.code, &error.to_status())
        };
        if error.retry_after() {
            reply.headers.push((RETRY_AFTER, HeaderValue::from_static("1")));
        }
        reply
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Adds `Warning: 299 - "text"`, once per text.
    pub(crate) fn with_warnings(mut self, warnings: &[String]) -> Self {
        for text in warnings {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
            // A text that no header can carry is not worth failing a request for.
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
                self.headers.push((WARNING, value));
            }
        }
        self
    }

    pub(crate) fn into_response(self) -> http::Response<Body> {
        let mut response = http::Response::new(self.body);
        *response.status_mut() =
            http::StatusCode::from_u16(self.code).expect("codes are written in this crate");
        let headers = response.headers_mut();
        if !self.content_type.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        if !self.headers.iter().any(|(name, _)| name == CACHE_CONTROL) {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}
