//! Requests to the API server and their response bodies. Each wait has a timeout.

use std::time::Duration;

use super::Target;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use nearhop_runtime::client::{Refusal, retry_after};
use serde::de::IgnoredAny;
use tokio::time::timeout;

use super::error::Error;
use super::lines::Lines;
use super::query::{Query, request};
use super::status::SharedStatus;

/// Sends the requests of one watch.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) target: Target,
    pub(crate) status: SharedStatus,
}

/// The most bytes read from the body of a rejection.
const LONGEST_REFUSAL: usize = 64 * 1024;

impl Connection {
    /// Sends a request and waits for the head of its response.
    pub(crate) async fn open(&self, query: Query<'_>, patience: Duration) -> Result<Answer, Error> {
        let sent = self.client.send(request(&self.target, query));
        let response = timeout(patience, sent).await.map_err(|_| Error::Silent(patience))?;
        let response = response.map_err(Error::Unreachable)?;
        self.status.contact();
        let (head, body) = response.into_parts();
        let mut answer = Answer { body, status: self.status.clone() };
        if head.status.is_success() {
            return Ok(answer);
        }
        let after = retry_after(&head.headers);
        let body = answer.beginning(patience).await;
        Err(Error::Refused(Refusal::read(head.status.as_u16(), after, &body)))
    }
}

/// The body of a response. Dropping it before its end closes the connection.
pub(crate) struct Answer {
    body: Body,
    status: SharedStatus,
}

impl Answer {
    /// The next chunk; None at the end.
    pub(crate) async fn chunk(&mut self, patience: Duration) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = timeout(patience, self.body.frame()).await;
            let frame = frame.map_err(|_| Error::Silent(patience))?;
            let Some(frame) = frame.transpose().map_err(Error::Broken)? else { return Ok(None) };
            self.status.contact();
            // Other frames are trailers, which are ignored.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// The beginning of the body of a rejection.
    async fn beginning(&mut self, patience: Duration) -> BytesMut {
        let mut all = BytesMut::new();
        while all.len() < LONGEST_REFUSAL
            && let Ok(Some(chunk)) = self.chunk(patience).await
        {
            all.extend_from_slice(&chunk);
        }
        all
    }
}

/// A watch: a response in lines.
pub(crate) struct Stream {
    answer: Answer,
    lines: Lines,
}

impl Stream {
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, lines: Lines::default() }
    }

    /// The next line that has arrived already.
    pub(crate) fn buffered(&mut self) -> Option<BytesMut> {
        self.lines.next()
    }

    /// The next line; None at the end.
    pub(crate) async fn line(&mut self, patience: Duration) -> Result<Option<BytesMut>, Error> {
        loop {
            if let Some(line) = self.lines.next() {
                return Ok(Some(line));
            }
            match self.answer.chunk(patience).await? {
                Some(chunk) => self.lines.push(&chunk),
                // A last line without an end counts if it is complete JSON.
                None => return Ok(self.lines.rest().filter(|rest| is_whole(rest))),
            }
        }
    }
}

fn is_whole(json: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(json).is_ok()
}
