//! Lists and watches one resource: list, watch, resume after the last version, list again if that
//! is impossible, with back-off. No kind is known here; a `Decoder` reads the objects.
//!
//! ```text
//!   query       paths and parameters of requests
//!   connection  requests and bodies, each wait with a timeout
//!   lines       cuts a body into watch events
//!   items       cuts a body into items of a list
//!   line        reads a watch event
//!   task, list  list, watch, resume, back off
//!   supervise   restarts a task after a panic
//! ```
//!
//! Full objects, without a decoder of their own:
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::Pod;
//! use nearhop_feed::watch::{self, Event, Options, Target};
//!
//! # async fn example(client: kube::Client) {
//! let target = Target::of::<Pod>().fields("spec.nodeName=worker-1".to_owned());
//! let mut events = watch::start::<Pod>(client, target, Options::default());
//! while let Some(batch) = events.recv().await {
//!     for event in batch {
//!         match event {
//!             Event::ListStarted => println!("forget which Pods were listed"),
//!             Event::Put(pod) => println!("{:?} was created or updated", pod.metadata.name),
//!             Event::Gone(pod) => println!("{:?} was deleted", pod.metadata.name),
//!             Event::Listed(version) => println!("the list of {} is complete", version.as_str()),
//!             Event::Failed => println!("changes may be late"),
//!         }
//!     }
//! }
//! # }
//! ```

mod connection;
mod error;
mod items;
mod line;
mod lines;
mod list;
mod options;
mod query;
mod status;
mod supervise;
mod task;

use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use nearhop_api::Version;
use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer};
use tokio::sync::mpsc;

pub use options::{Lists, Options};
pub use status::Status;

use status::SharedStatus;
pub(crate) use status::StatusReader;
use task::Task;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<T> {
    /// A list begins. Objects that it does not show until [`Event::Listed`] were deleted.
    ListStarted,
    /// An object was created or updated, or is on a list.
    Put(T),
    /// An object was deleted.
    Gone(T),
    /// The list is complete, as of this version; empty if the API server does not have the
    /// resource.
    Listed(Version),
    /// A list or a watch failed. It is retried; until then changes are not seen.
    Failed,
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct Target {
    /// For log lines and statuses.
    pub(crate) resource: &'static str,
    /// The path of the collection.
    pub(crate) path: String,
    pub(crate) selectors: Selectors,
    pub(crate) tolerated: Option<Tolerated>,
}

impl Target {
    /// All objects of a collection.
    pub(crate) fn new(resource: &'static str, path: String) -> Self {
        Self { resource, path, selectors: Selectors::default(), tolerated: None }
    }

    /// All objects of a type, in all namespaces.
    pub fn of<T: k8s_openapi::ListableResource>() -> Self {
        Self::new(T::URL_PATH_SEGMENT, format!("{}/{}", root::<T>(), T::URL_PATH_SEGMENT))
    }

    /// All objects of a type in one namespace.
    pub fn within<T>(namespace: &str) -> Self
    where
        T: k8s_openapi::ListableResource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let path = format!("{}/namespaces/{namespace}/{}", root::<T>(), T::URL_PATH_SEGMENT);
        Self::new(T::URL_PATH_SEGMENT, path)
    }

    /// Only objects with these fields.
    #[must_use]
    pub fn fields(mut self, selector: String) -> Self {
        self.selectors.fields = Some(selector);
        self
    }

    /// Whether this rejection means that there are no objects.
    fn tolerates(&self, error: &error::Error) -> Option<&Tolerated> {
        let code = error.code()?;
        self.tolerated.as_ref().filter(|tolerated| tolerated.codes.contains(&code))
    }
}

fn root<T: k8s_openapi::Resource>() -> String {
    let api = if T::GROUP.is_empty() { "api" } else { "apis" };
    format!("/{api}/{}", T::API_VERSION)
}

/// Which objects: those that both select. The default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// `labelSelector`.
    pub labels: Option<String>,
    /// `fieldSelector`.
    pub fields: Option<String>,
}

/// Rejections of a resource that the caller can do without: the list is then empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerated {
    pub(crate) codes: &'static [u16],
    /// The longest pause before the next attempt.
    pub(crate) longest_pause: Duration,
    /// The message for logs and statuses, from the error and its code.
    pub(crate) describe: fn(&str, u16) -> String,
}

/// Reads the objects of a resource.
pub(crate) trait Decoder:
    for<'de> DeserializeSeed<'de, Value = Self::Object> + Copy + Send + Sync + 'static
{
    type Object: Send + 'static;

    /// Reads an item of a list. An unreadable item without a substitute is skipped.
    fn decode(self, json: &[u8]) -> Option<Self::Object>;

    /// The substitute for the object of an unreadable event. Without one the event is skipped.
    fn unreadable_event(self, line: &[u8], error: &serde_json::Error) -> Option<Self::Object>;

    /// `metadata.resourceVersion`; empty if unknown.
    fn version(object: &Self::Object) -> &str;
}

/// Converts the events of a watch into what its receiver gets.
pub(crate) trait Sink<T>: Send + 'static {
    type Event: Send + 'static;

    /// Converts an event, or swallows it. If it passes [`Event::ListStarted`] on, the list is
    /// requested after the receiver took that event: it shows all writes answered before.
    fn convert(&mut self, event: Event<T>) -> Option<Self::Event>;
}

/// Prepares a watch. It runs while the returned future is polled and the receiver exists.
pub(crate) fn run<D: Decoder, S: Sink<D::Object>>(
    client: Client,
    target: Target,
    options: Options,
    decoder: D,
    sink: S,
    events: mpsc::Sender<Vec<S::Event>>,
) -> (StatusReader, impl Future<Output = ()> + Send + 'static) {
    let status = SharedStatus::new(target.resource);
    let reader = StatusReader(status.clone());
    let task = Task::new(client, target, options, decoder, sink, status, events);
    (reader, supervise::keep_running(task))
}

/// Watches full objects until the receiver is dropped; must be called within a tokio runtime. An
/// unreadable object is logged and skipped. Events come in batches.
///
/// A receiver that handles each batch before it takes the next has handled
/// [`Event::ListStarted`] before that list is requested.
pub fn start<T>(client: Client, target: Target, options: Options) -> mpsc::Receiver<Vec<Event<T>>>
where
    T: DeserializeOwned + k8s_openapi::Metadata<Ty = ObjectMeta> + Send + 'static,
{
    let (events, receiver) = mpsc::channel(1);
    let decoder = FullObject { resource: target.resource, object: PhantomData };
    let (_, task) = run(client, target, options, decoder, AsIs, events);
    tokio::spawn(task);
    receiver
}

struct AsIs;

impl<T: Send + 'static> Sink<T> for AsIs {
    type Event = Event<T>;

    fn convert(&mut self, event: Event<T>) -> Option<Event<T>> {
        Some(event)
    }
}

struct FullObject<T> {
    resource: &'static str,
    object: PhantomData<fn() -> T>,
}

impl<T> Clone for FullObject<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for FullObject<T> {}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for FullObject<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<T, D::Error> {
        T::deserialize(text)
    }
}

impl<T> Decoder for FullObject<T>
where
    T: DeserializeOwned + k8s_openapi::Metadata<Ty = ObjectMeta> + Send + 'static,
{
    type Object = T;

    fn decode(self, json: &[u8]) -> Option<T> {
        serde_json::from_slice(json).map_err(|error| self.log(&error)).ok()
    }

    fn unreadable_event(self, _: &[u8], error: &serde_json::Error) -> Option<T> {
        self.log(error);
        None
    }

    fn version(object: &T) -> &str {
        object.metadata().resource_version.as_deref().unwrap_or_default()
    }
}

impl<T> FullObject<T> {
    fn log(self, error: &serde_json::Error) {
        tracing::warn!(resource = self.resource, %error, "unreadable object skipped");
    }
}
