//! Bytes from the server, with patience: each wait has an end. What they mean is not known here.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use nearhop_core::Kind;
use serde::de::IgnoredAny;
use tokio::time::timeout;

use crate::error::{Error, Refusal, parse_retry_after};
use crate::lines::Lines;
use crate::options::Selectors;
use crate::query::{Query, request};
use crate::status::SharedStatus;

/// Where requests about one kind go.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) kind: Kind,
    pub(crate) selectors: Selectors,
    pub(crate) board: SharedStatus,
}

/// As much of a refusal as is read.
const LONGEST_REFUSAL: usize = 64 * 1024;

impl Connection {
    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn open(&self, query: Query<'_>, patience: Duration) -> Result<Answer, Error> {
        let sent = self.client.send(request(self.kind, &self.selectors, query));
        let response = timeout(patience, sent).await.map_err(|_| Error::Silent(patience))?;
        let response = response.map_err(Error::Unreachable)?;
        self.board.contact();
        let (head, body) = response.into_parts();
        let mut answer = Answer { body, board: self.board.clone() };
        if head.status.is_success() {
            return Ok(answer);
        }
        let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(parse_retry_after);
        let body = answer.beginning(patience).await;
        Err(Error::Refused(Refusal::read(head.status.as_u16(), after, &body)))
    }
}

/// The body of an answer. The connection is closed when it is dropped before its end.
pub(crate) struct Answer {
    body: Body,
    board: SharedStatus,
}

impl Answer {
    /// What arrived next; nothing at the end.
    pub(crate) async fn chunk(&mut self, patience: Duration) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = timeout(patience, self.body.frame()).await;
            let frame = frame.map_err(|_| Error::Silent(patience))?;
            let Some(frame) = frame.transpose().map_err(Error::Broken)? else { return Ok(None) };
            self.board.contact();
            // Others are trailers, which say nothing that matters.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// As much of a refusal as can be had.
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

/// A watch: an answer in lines.
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

    /// The next line; nothing at the end.
    pub(crate) async fn line(&mut self, patience: Duration) -> Result<Option<BytesMut>, Error> {
        loop {
            if let Some(line) = self.lines.next() {
                return Ok(Some(line));
            }
            match self.answer.chunk(patience).await? {
                Some(chunk) => self.lines.push(&chunk),
                // What has no end of line counts if it is whole; what was cut off comes again.
                None => return Ok(self.lines.rest().filter(|rest| is_whole(rest))),
            }
        }
    }
}

fn is_whole(json: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(json).is_ok()
}
