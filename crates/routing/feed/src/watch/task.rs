//! One watch: list, watch, resume after the last version, list again if that is impossible, until
//! the receiver is dropped.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use kube::Client;
use nearhop_api::Version;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::error_chain;
use tokio::sync::mpsc::Sender;

use super::connection::{Connection, Stream};
use super::error::Error;
use super::line::{Line, read_line};
use super::options::{Lists, Options};
use super::query::Query;
use super::status::SharedStatus;
use super::{Decoder, Event, Sink, Target};

/// A watch that ends sooner is followed by a pause, however it ended.
const SHORT: Duration = Duration::from_secs(1);

/// A watch that lasts longer resets the back-off, even without events.
const STEADY: Duration = Duration::from_secs(10);

/// The longest pause while the API server is unreachable: a request costs it nothing, and until it
/// is back nodes route by old data. A server that answers with errors gets longer pauses.
const LONGEST_PAUSE_UNREACHABLE: Duration = Duration::from_secs(2);

/// The most events in a batch; a batch is smaller if no more have arrived.
const BATCH: usize = 256;

/// How a successful step ended.
pub(super) enum Done {
    /// The next step can follow.
    Continue,
    /// A watch ended, or was silent for too long, after this time.
    Ended(Duration),
}

/// Failures since the last success, by what determines the pause.
#[derive(Default)]
struct Failures {
    /// The API server answered with an error, or a watch broke off.
    answered: u32,
    unreachable: u32,
    /// The API server does not have the resource.
    tolerated: u32,
}

/// One watch.
pub(super) struct Task<D: Decoder, S: Sink<D::Object>> {
    pub(super) decoder: D,
    sink: S,
    pub(super) options: Options,
    pub(super) connection: Connection,
    pub(super) status: SharedStatus,
    /// How to list from now on.
    pub(super) lists: Lists,
    /// Where to resume the watch; without it, everything has to be listed.
    pub(super) version: Option<Version>,
    pub(super) events: Sender<Vec<S::Event>>,
    /// The next batch.
    outbox: Vec<S::Event>,
    failures: Failures,
    /// Whether the receiver knows that the API server does not have the resource.
    pub(super) sent_absent: bool,
    /// The last error, so that it is logged once.
    last_error: Option<String>,
}

impl<D: Decoder, S: Sink<D::Object>> Task<D, S> {
    pub(super) fn new(
        client: Client,
        target: Target,
        options: Options,
        decoder: D,
        sink: S,
        status: SharedStatus,
        events: Sender<Vec<S::Event>>,
    ) -> Self {
        Self {
            decoder,
            sink,
            connection: Connection { client, target, status: status.clone() },
            status,
            lists: options.lists,
            version: None,
            events,
            outbox: Vec::new(),
            failures: Failures::default(),
            sent_absent: false,
            last_error: None,
            options,
        }
    }

    /// Begins again with a list, after a panic.
    pub(super) fn reset(&mut self) {
        self.lists = self.options.lists;
        self.version = None;
        self.outbox.clear();
        self.sent_absent = false;
        self.last_error = None;
        self.failures = Failures::default();
    }

    pub(super) fn resource(&self) -> &'static str {
        self.connection.target.resource
    }

    /// Runs until the receiver is dropped.
    pub(super) async fn run(&mut self) {
        loop {
            let done = self.step().await;
            if let Err(error) = &done
                && self.connection.target.tolerates(error).is_some()
            {
                self.send_absent();
            }
            let pause = match done {
                Ok(Done::Ended(lived)) if lived < SHORT => self.next_pause(),
                Ok(_) => Duration::ZERO,
                Err(Error::NoReceiver) => return,
                Err(error) => self.on_error(&error),
            };
            if self.flush().await.is_err() {
                return;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
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
        let query = Query::Watch { after, timeout: self.options.next_watch_timeout() };
        // Some proxies hold back even the head of the answer until the first event.
        let answer = self.connection.open(query, self.options.stall).await?;
        self.status.watching();
        self.follow(Stream::new(answer)).await
    }

    /// Follows a watch to its end.
    pub(super) async fn follow(&mut self, stream: Stream) -> Result<Done, Error> {
        let began = Instant::now();
        let ended = self.follow_lines(stream).await;
        let lived = began.elapsed();
        if lived >= STEADY {
            self.on_success();
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
            match read_line(self.decoder, &line) {
                Line::Put(object) => self.follow_object(object, Event::Put).await?,
                Line::Gone(object) => self.follow_object(object, Event::Gone).await?,
                Line::Bookmark(_, version) => self.resume_after(version)?,
                Line::Error(refusal) => return Err(Error::Refused(refusal)),
                Line::Skipped => {}
            }
            self.on_success();
        }
    }

    async fn follow_object(
        &mut self,
        object: D::Object,
        event: fn(D::Object) -> Event<D::Object>,
    ) -> Result<(), Error> {
        let version = Version::from(D::version(&object));
        self.send(event(object)).await?;
        // The version of an unreadable object is skipped as soon as a later version is readable.
        if !version.as_str().is_empty() {
            self.version = Some(version);
        }
        Ok(())
    }

    /// Waits for a line, after everything before it was sent. None if the watch ended, or was
    /// silent for too long.
    async fn next_line(&mut self, stream: &mut Stream) -> Result<Option<BytesMut>, Error> {
        self.flush().await?;
        match stream.line(self.options.stall).await {
            Err(Error::Silent(_)) => {
                self.status.stalled();
                tracing::debug!(resource = self.resource(), "idle watch closed; resuming");
                Ok(None)
            }
            line => line,
        }
    }

    /// Everything up to this version was sent.
    fn resume_after(&mut self, to: Version) -> Result<(), Error> {
        match self.version.replace(to.clone()) {
            Some(from) if to < from => Err(Error::WentBack { from, to }),
            _ => Ok(()),
        }
    }

    /// Sends an event with the next batch: waking the receiver costs more than reading a Pod.
    pub(super) async fn send(&mut self, event: Event<D::Object>) -> Result<(), Error> {
        self.outbox.extend(self.sink.convert(event));
        if self.outbox.len() < BATCH { Ok(()) } else { self.flush().await }
    }

    /// Sends that a list begins. If the receiver gets this event, waits until it took it.
    pub(super) async fn start_list(&mut self) -> Result<(), Error> {
        let Some(event) = self.sink.convert(Event::ListStarted) else { return Ok(()) };
        self.outbox.push(event);
        self.flush().await?;
        let all = self.events.reserve_many(self.events.max_capacity()).await;
        all.map(drop).map_err(|_| Error::NoReceiver)
    }

    /// Sends once that the API server does not have the resource, so that there are no objects.
    fn send_absent(&mut self) {
        if std::mem::replace(&mut self.sent_absent, true) {
            return;
        }
        let listed = Event::Listed(Version::from(""));
        for event in [Event::ListStarted, listed] {
            self.outbox.extend(self.sink.convert(event));
        }
    }

    async fn flush(&mut self) -> Result<(), Error> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.outbox);
        self.events.send(batch).await.map_err(|_| Error::NoReceiver)
    }

    pub(super) fn on_success(&mut self) {
        self.failures = Failures::default();
        if self.last_error.take().is_some() {
            tracing::info!(resource = self.resource(), "watch recovered");
        }
    }

    /// Records an error, and decides how long to pause.
    fn on_error(&mut self, error: &Error) -> Duration {
        if self.must_list(error) {
            self.version = None;
        }
        let text = error.describe(&self.connection.target);
        self.status.failed(&text);
        self.log_error(error, text);
        self.outbox.extend(self.sink.convert(Event::Failed));
        if let Some(tolerated) = self.connection.target.tolerates(error) {
            let backoff = self.options.backoff_up_to(tolerated.longest_pause);
            return backoff.next_delay(&mut self.failures.tolerated);
        }
        if matches!(error, Error::Unreachable(_)) {
            let backoff = self.options.backoff_up_to(LONGEST_PAUSE_UNREACHABLE);
            return backoff.next_delay(&mut self.failures.unreachable);
        }
        self.next_pause().max(error.retry_after())
    }

    fn backoff(&self) -> Backoff {
        self.options.backoff_up_to(Duration::MAX)
    }

    fn next_pause(&mut self) -> Duration {
        self.backoff().next_delay(&mut self.failures.answered)
    }

    fn log_error(&mut self, error: &Error, text: String) {
        let resource = self.resource();
        if let Error::Broken(cause) = error {
            tracing::debug!(resource, cause = %error_chain(cause), "connection to API server ended");
        }
        if self.last_error.as_ref() == Some(&text) {
            tracing::debug!(resource, error = text, "watch failed; will retry");
            return;
        }
        match error {
            Error::Broken(_) => {
                tracing::warn!(resource, "API server closed the watch; reconnecting");
            }
            _ => tracing::warn!(resource, error = text, "watch failed; will retry"),
        }
        self.last_error = Some(text);
    }

    /// Whether the watch cannot be resumed. A server that fails repeatedly may fail because of the
    /// version in the request.
    fn must_list(&self, error: &Error) -> bool {
        match error {
            Error::WentBack { .. } => true,
            error if self.connection.target.tolerates(error).is_some() => true,
            Error::Refused(refusal) => {
                refusal.is_expired()
                    || refusal.is_about_the_request()
                    || (refusal.code >= 500
                        && self.backoff().delay(self.failures.answered, 0.0)
                            >= self.options.backoff_cap)
            }
            _ => false,
        }
    }
}
