//! watch: encodes the changes after a position in the store's log as frames.
//!
//! The task ends when the client does not read, so a slow client costs no memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use jiff::Timestamp;
use nearhop_kinds::Resource;
use nearhop_kinds::table::{self, Definitions, IncludeObject};
use nearhop_object::decode::zero_object;
use rand::Rng as _;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::options::{Selection, WatchOptions};
use super::view;
use super::{Api, Request};
use crate::http::{Form, MetaVersion, Reply, json_body, until};
use crate::metrics::WatchGuard;
use crate::status::ApiError;
use crate::store::{Event, EventKind, Snapshot, Stored};

/// A watch ends when the client reads nothing for this long.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of frames that wait for the client.
const MAX_QUEUED: usize = 64;
/// Events read from the log at a time.
const BATCH: usize = 256;
/// The limit of `timeoutSeconds`, so that the deadline does not overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

pub(super) fn watch(api: &Arc<Api>, request: &Request) -> Result<Reply, ApiError> {
    let options = WatchOptions::parse(&request.query)?;
    let name = request.name.as_deref();
    let selection = Selection::parse(&request.resource, &request.query, name)?;
    let shape = FrameShape::new(request)?;
    let (frames, receiver) = mpsc::channel(MAX_QUEUED);
    let changes = api.store.subscribe(&request.resource.storage);
    // Read before the reply begins: a client that writes after it gets the reply sees its write as
    // a change.
    let (position, initial) = match options.after {
        Some(u64::MAX) => (api.store.version(), None),
        Some(version) => (version, None),
        None => {
            let namespace = request.namespace.as_deref();
            let snapshot = api.store.list(&request.resource.storage, namespace);
            (snapshot.version, Some(snapshot))
        }
    };
    let watcher = Watcher {
        changes,
        drops: api.faults.drops(),
        stop: api.stopping(),
        _counted: api.metrics.watching(&request.resource.qualified_plural()),
        api: Arc::clone(api),
        namespace: request.namespace.clone(),
        selection,
        shape,
        frames,
        position,
    };
    tokio::spawn(watcher.run(options, initial));
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let frame = receiver.recv().await?;
        Some((frame, receiver))
    });
    Ok(Reply::stream(frames))
}

/// The client does not read.
struct Closed;

struct Watcher {
    api: Arc<Api>,
    namespace: Option<String>,
    selection: Selection,
    shape: FrameShape,
    changes: watch::Receiver<u64>,
    drops: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
    frames: mpsc::Sender<Bytes>,
    /// All changes up to this version are sent.
    position: u64,
    _counted: WatchGuard,
}

impl Watcher {
    /// Ends when the client disconnects, at the timeout, or when the position is compacted.
    async fn run(mut self, options: WatchOptions, initial: Option<Snapshot>) {
        let seconds =
            options.timeout_seconds.unwrap_or_else(|| rand::rng().random_range(30 * 60..60 * 60));
        let end = Instant::now() + Duration::from_secs(seconds).min(MAX_DURATION);
        let _closed = self.follow(&options, initial, end).await;
    }

    async fn follow(
        &mut self,
        options: &WatchOptions,
        initial: Option<Snapshot>,
        end: Instant,
    ) -> Result<(), Closed> {
        if let Some(snapshot) = initial {
            self.send_initial(options, snapshot).await?;
        }
        let last_bookmark = end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(end);
        let mut bookmark = (Instant::now() + BOOKMARK_PERIOD).min(last_bookmark);
        let mut bookmarked = self.position;
        loop {
            if !self.send_changes().await? {
                return Ok(());
            }
            let bookmark_due = tokio::select! {
                changed = self.changes.changed() => if changed.is_ok() { false } else { return Ok(()) },
                _ = self.drops.changed() => return Ok(()),
                () = until(&mut self.stop) => return Ok(()),
                () = self.frames.closed() => return Err(Closed),
                () = sleep_until(end) => return Ok(()),
                () = sleep_until(bookmark), if options.bookmarks => true,
            };
            if bookmark_due {
                let next = (bookmark + BOOKMARK_PERIOD).min(last_bookmark);
                bookmark = if bookmark < last_bookmark { next } else { end + BOOKMARK_PERIOD };
                bookmarked = self.send_bookmark_after(bookmarked).await?;
            }
        }
    }

    async fn send_initial(
        &mut self,
        options: &WatchOptions,
        snapshot: Snapshot,
    ) -> Result<(), Closed> {
        for object in snapshot.objects {
            if self.selection.matches(&object) {
                let frame = self.shape.frame(EventKind::Added.as_str(), &object);
                self.send(frame).await?;
            }
        }
        if options.mark_end {
            let frame =
                self.shape.bookmark(self.position, json!({"k8s.io/initial-events-end": "true"}));
            self.send(frame).await?;
        }
        Ok(())
    }

    /// Sends all changes of the log; `false` if the watch is over.
    async fn send_changes(&mut self) -> Result<bool, Closed> {
        loop {
            self.changes.mark_unchanged();
            let storage = &self.shape.resource.storage;
            let changes = match self.api.store.events_after(storage, self.position, BATCH) {
                Ok(changes) => changes,
                Err(compacted) => {
                    let frame = self.shape.expired(self.position, compacted.newest);
                    self.send(frame).await?;
                    return Ok(false);
                }
            };
            let more = !changes.events.is_empty();
            for event in changes.events {
                if let Some(frame) = self.frame_for(&event) {
                    self.send(frame).await?;
                }
            }
            // Also without changes: the position of a current watcher is not compacted.
            self.position = changes.upto;
            if !more {
                return Ok(true);
            }
        }
    }

    async fn send_bookmark_after(&mut self, last: u64) -> Result<u64, Closed> {
        // Every change of this storage up to here is sent: the select saw none since.
        let newest = self.api.store.version();
        if newest == last || self.changes.has_changed().unwrap_or(true) {
            return Ok(last);
        }
        let frame = self.shape.bookmark(newest, Value::Null);
        self.send(frame).await?;
        Ok(newest)
    }

    /// The frame that this watcher gets for a change, if any: entering a selection is ADDED,
    /// leaving it is DELETED with the last state that matched.
    fn frame_for(&mut self, event: &Event) -> Option<Bytes> {
        let inside = self.namespace.as_deref().is_none_or(|n| n == &*event.object.name.namespace);
        if !inside {
            return None;
        }
        let matched = event.previous.as_ref().is_some_and(|object| self.selection.matches(object));
        let matches = event.kind != EventKind::Deleted && self.selection.matches(&event.object);
        match (matched, matches) {
            (false, false) => None,
            (false, true) => Some(self.frame(event, EventKind::Added, &event.object)),
            (true, true) => Some(self.frame(event, EventKind::Modified, &event.object)),
            (true, false) => {
                let left = event.previous.as_ref()?.at_version(event.version());
                Some(self.frame(event, EventKind::Deleted, &left))
            }
        }
    }

    fn frame(&mut self, event: &Event, kind: EventKind, object: &Stored) -> Bytes {
        // Plain watchers share the bytes.
        if self.shape.is_plain() && kind == event.kind {
            let shape = &self.shape;
            return event.frame(|| shape.plain(kind.as_str(), object));
        }
        self.shape.frame(kind.as_str(), object)
    }

    async fn send(&self, frame: Bytes) -> Result<(), Closed> {
        match timeout(READ_TIMEOUT, self.frames.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Closed),
        }
    }
}

struct FrameShape {
    resource: Arc<Resource>,
    head: String,
    form: Form,
    include: IncludeObject,
    definitions: Definitions,
}

impl FrameShape {
    fn new(request: &Request) -> Result<Self, ApiError> {
        let form = request.form()?;
        if form == Form::Yaml {
            let accepted =
                "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
            let message = format!("only the following media types are accepted: {accepted}");
            return Err(ApiError::not_acceptable(message));
        }
        Ok(Self {
            head: view::head_of(&request.resource),
            resource: Arc::clone(&request.resource),
            form,
            include: view::include_of(&request.query)?,
            definitions: Definitions::Given,
        })
    }

    /// Whether frames are the stored text.
    fn is_plain(&self) -> bool {
        self.form == Form::Object && self.resource.strategy.stored_form.is_none()
    }

    fn plain(&self, kind: &str, object: &Stored) -> Bytes {
        let mut text = Vec::with_capacity(object.len() + 160);
        text.extend_from_slice(b"{\"type\":\"");
        text.extend_from_slice(kind.as_bytes());
        text.extend_from_slice(b"\",\"object\":");
        view::write_json(&self.resource, &self.head, object, &mut text);
        text.extend_from_slice(b"}\n");
        Bytes::from(text)
    }

    fn frame(&mut self, kind: &str, object: &Stored) -> Bytes {
        match self.form {
            Form::Object | Form::Yaml => self.plain(kind, object),
            form => {
                let value = view::to_value(&self.resource, object);
                self.shaped(kind, &value, form)
            }
        }
    }

    fn bookmark(&mut self, version: u64, annotations: Value) -> Bytes {
        let schema = self.resource.schema.as_ref();
        let mut object = schema.map_or_else(|| json!({}), |schema| zero_object(schema.node()));
        object["kind"] = (*self.resource.kind).into();
        object["apiVersion"] = self.resource.api_version().into();
        object["metadata"] = json!({"resourceVersion": version.to_string()});
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        if self.resource.strategy.stored_form.is_some() {
            object = json!({
                "kind": object["kind"], "apiVersion": object["apiVersion"],
                "metadata": object["metadata"]
            });
        }
        self.shaped("BOOKMARK", &object, self.form)
    }

    fn expired(&self, asked: u64, newest: u64) -> Bytes {
        let error =
            ApiError::expired(format!("too old resource version: {asked} ({newest})"), None);
        json_body(&json!({"type": "ERROR", "object": error.to_status()}))
    }

    fn shaped(&mut self, kind: &str, object: &Value, form: Form) -> Bytes {
        let shown = match form {
            Form::Object | Form::Yaml => object.clone(),
            Form::Partial(version) | Form::PartialList(version) => view::partial(object, version),
            Form::Table(version) => self.table(object, version),
        };
        json_body(&json!({"type": kind, "object": shown}))
    }

    /// Only the first frame has the column definitions.
    fn table(&mut self, object: &Value, version: MetaVersion) -> Value {
        let definitions = std::mem::replace(&mut self.definitions, Definitions::Left);
        let now = Timestamp::now();
        let table = table::table_of_one(&self.resource, object, definitions, self.include, now);
        view::in_version(table, version)
    }
}
