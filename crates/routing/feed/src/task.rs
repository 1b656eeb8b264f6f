//! One kind's task: list, watch, resume where the watch ended, list again where that is no longer
//! possible, and so on for as long as somebody receives.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use kube::Client;
use nearhop_api::Version;
use nearhop_core::Kind;
use tokio::sync::mpsc::Sender;

use crate::backoff::{Backoff, jittered};
use crate::connection::{Connection, Stream};
use crate::error::Error;
use crate::event::Event;
use crate::line::{Line, read_line};
use crate::options::{Lists, Options};
use crate::query::Query;
use crate::status::SharedStatus;

/// A watch that ends sooner is followed by a pause, however it ended.
const SHORT: Duration = Duration::from_secs(1);

/// A watch that lasts longer shows that all is well, even where nothing happened.
const STEADY: Duration = Duration::from_secs(10);

/// The longest pause, give or take half of it, for a server that is not there: asking costs it
/// nothing, and until it is found again nodes route by what was. One that answers, but badly, is
/// spared for longer.
const AWAY: Duration = Duration::from_millis(1500);

/// The longest pause for a kind that the server does not know: asking costs it next to nothing,
/// and whoever defines the kind wants to see it at work.
const UNDEFINED: Duration = Duration::from_secs(5);

/// Whoever defines PodLocators wants to see them at work; a server that has no ServiceCIDRs gets
/// them with its next version.
fn undefined_cap(kind: Kind) -> Duration {
    if kind == Kind::ServiceCidr { Duration::MAX } else { UNDEFINED }
}

/// Events that are handed on at once; fewer where no more have arrived.
const BATCH: usize = 256;

/// How a step ended that went well.
pub(crate) enum Done {
    /// The next one can follow.
    GoOn,
    /// A watch ended, or fell silent, after so long.
    Ended(Duration),
}

/// One kind's task.
pub(crate) struct Task {
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    pub(crate) connection: Connection,
    pub(crate) board: SharedStatus,
    /// How to list from now on.
    pub(crate) lists: Lists,
    /// Where to resume the watch; without it, everything has to be listed.
    pub(crate) version: Option<Version>,
    /// Whether anybody has been told of any object.
    pub(crate) delivered: bool,
    events: Sender<Vec<Event>>,
    /// What is to be handed on with the next batch.
    pub(crate) outbox: Vec<Event>,
    backoff: Backoff,
    /// For a server that is not there.
    away: Backoff,
    /// For a kind that the server does not know.
    undefined: Backoff,
    /// Whether it has been said that there are none, because the server does not know the kind.
    pub(crate) said_undefined: bool,
    /// What was last complained about, so that it is not said again and again.
    complaint: Option<String>,
}

impl Task {
    pub(crate) fn new(
        client: Client,
        kind: Kind,
        options: &Options,
        board: SharedStatus,
        events: Sender<Vec<Event>>,
    ) -> Self {
        let selectors = options.watches.get(&kind).cloned().unwrap_or_default();
        Self {
            kind,
            connection: Connection { client, kind, selectors, board: board.clone() },
            board,
            lists: options.lists,
            version: None,
            delivered: false,
            events,
            outbox: Vec::new(),
            backoff: Backoff::new(options.backoff, options.backoff_cap),
            away: Backoff::new(options.backoff, options.backoff_cap.min(AWAY)),
            undefined: Backoff::new(options.backoff, options.backoff_cap.min(undefined_cap(kind))),
            said_undefined: false,
            complaint: None,
            options: options.clone(),
        }
    }

    /// Another task for the same kind, to begin with a list. Something may have been handed on, so
    /// that the list has to name what there is.
    pub(crate) fn successor(&self) -> Self {
        let client = self.connection.client.clone();
        let (board, events) = (self.board.clone(), self.events.clone());
        let successor = Self::new(client, self.kind, &self.options, board, events);
        Self { delivered: true, ..successor }
    }

    /// Where events go.
    pub(crate) fn events(&self) -> Sender<Vec<Event>> {
        self.events.clone()
    }

    /// Runs until nobody receives.
    pub(crate) async fn run(mut self) {
        loop {
            let done = self.step().await;
            if let Err(error) = &done
                && error.is_undefined(self.kind)
            {
                self.do_without();
            }
            if self.flush().await.is_err() {
                return;
            }
            let pause = match done {
                Ok(Done::Ended(lived)) if lived < SHORT => self.backoff.pause(),
                Ok(_) => continue,
                Err(Error::Unwanted) => return,
                Err(error) => self.on_error(&error),
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn step(&mut self) -> Result<Done, Error> {
        match (self.version.clone(), self.lists) {
            (Some(version), _) => self.watch(&version).await,
            (None, Lists::Streaming) => self.list_streaming().await,
            (None, Lists::Paged) => self.list_paged().await,
        }
    }

    async fn watch(&mut self, after: &Version) -> Result<Done, Error> {
        let query = Query::Watch { after, timeout: jittered(self.options.watch_timeout) };
        // Some proxies hold back even the head of the answer until something happens.
        let answer = self.connection.open(query, self.options.stall).await?;
        self.board.watching();
        self.follow(Stream::new(answer)).await
    }

    /// Follows a watch to its end.
    pub(crate) async fn follow(&mut self, stream: Stream) -> Result<Done, Error> {
        let began = Instant::now();
        let ended = self.follow_lines(stream).await;
        let lived = began.elapsed();
        if lived >= STEADY {
            self.all_is_well();
        }
        ended.map(|()| Done::Ended(lived))
    }

    async fn follow_lines(&mut self, mut stream: Stream) -> Result<(), Error> {
        loop {
            let line = match stream.buffered() {
                Some(line) => line,
                None => match self.next_line(&mut stream).await? {
                    Some(line) => line,
                    None => return Ok(()),
                },
            };
            match read_line(self.kind, &line) {
                Line::Changed(changed) => {
                    let version = changed.meta.version.clone();
                    self.send(Event::Changed(changed)).await?;
                    // One that could not be read is passed by as soon as a later one can.
                    if !version.as_str().is_empty() {
                        self.version = Some(version);
                    }
                }
                Line::Bookmark(_, version) => self.mark(version)?,
                Line::Error(refusal) => return Err(Error::Refused(refusal)),
            }
            self.all_is_well();
        }
    }

    /// Waits for a line, with everything handed on before; nothing when the watch is over, or fell
    /// silent.
    async fn next_line(&mut self, stream: &mut Stream) -> Result<Option<BytesMut>, Error> {
        self.flush().await?;
        match stream.line(self.options.stall).await {
            Err(Error::Silent(_)) => {
                self.board.stalled();
                tracing::debug!(
                    kind = self.kind.resource(),
                    "the watch fell silent; resuming it anew"
                );
                Ok(None)
            }
            line => line,
        }
    }

    /// Everything up to this version has been seen.
    fn mark(&mut self, to: Version) -> Result<(), Error> {
        match self.version.replace(to.clone()) {
            Some(from) if to < from => Err(Error::WentBack { from, to }),
            _ => Ok(()),
        }
    }

    /// Hands an event on with the next batch: waking the receiver costs more than reading a Pod.
    pub(crate) async fn send(&mut self, event: Event) -> Result<(), Error> {
        self.delivered |= matches!(event, Event::Changed(_));
        self.outbox.push(event);
        if self.outbox.len() < BATCH { Ok(()) } else { self.flush().await }
    }

    /// Hands on what is in the outbox.
    async fn flush(&mut self) -> Result<(), Error> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.outbox);
        self.events.send(batch).await.map_err(|_| Error::Unwanted)
    }

    pub(crate) fn all_is_well(&mut self) {
        self.backoff.reset();
        self.away.reset();
        self.undefined.reset();
        if self.complaint.take().is_some() {
            tracing::info!(kind = self.kind.resource(), "watching again");
        }
    }

    /// Draws the consequences of an error, and says how long to pause.
    fn on_error(&mut self, error: &Error) -> Duration {
        if self.has_lost_its_place(error) {
            self.version = None;
        }
        let text = error.describe(self.kind);
        self.board.failed(&text);
        self.complain(text);
        match error {
            Error::Unreachable(_) => self.away.pause(),
            error if error.is_undefined(self.kind) => self.undefined.pause(),
            _ => self.backoff.pause().max(error.retry_after()),
        }
    }

    fn complain(&mut self, text: String) {
        if self.complaint.as_ref() == Some(&text) {
            tracing::debug!(kind = self.kind.resource(), "{text}");
        } else {
            tracing::warn!(kind = self.kind.resource(), "{text}");
            self.complaint = Some(text);
        }
    }

    /// Whether the watch cannot be resumed. A server that fails again and again may fail because
    /// of the version that it is asked for.
    fn has_lost_its_place(&self, error: &Error) -> bool {
        match error {
            Error::WentBack { .. } => true,
            error if error.is_undefined(self.kind) => true,
            Error::Refused(refusal) => {
                refusal.is_expired()
                    || refusal.is_about_the_request()
                    || (refusal.code >= 500 && self.backoff.is_exhausted())
            }
            _ => false,
        }
    }
}
