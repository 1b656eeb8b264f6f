//! Watches the kinds that nearhop reads, as one stream of [`Event`]s.
//!
//! [`watch`] lists and watches any resource: it knows no kind. [`Feed`] runs one watch for each
//! [`Kind`], decodes objects into `nearhop-api`'s slim types and tells which objects a relist no
//! longer names.
//!
//! This is not kube-runtime's watcher, which decodes every object's whole metadata, managedFields
//! included. Here a Pod of 10 kB costs some hundred bytes; docs/benchmarks.md has the figures.
//!
//! Deliberately absent: writes, decisions, a store. Receivers keep what they need.

pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use nearhop_api::decode::{ObjectSeed, decode_object, salvage_event};
use nearhop_api::{Changed, Version};
use nearhop_core::{Change, Kind, ObjectRef, Subject};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use watch::{Lists, Selectors, Status};

use watch::{Decoder, Sink, StatusReader, Target, Tolerated};

/// Batches that may wait for their receiver; then the API server has to wait.
const WAITING_BATCHES: usize = 16;

/// What is watched, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The kinds, and which objects of them. Each kind once: a list of some of its objects says
    /// that there are no others.
    pub watches: BTreeMap<Kind, Selectors>,
    /// Timeouts and back-off of each watch.
    pub watch: watch::Options,
}

/// An event of a feed. Events of one kind are in order; events of different kinds are not.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An object was created, updated or deleted. An event may repeat what is known already.
    Changed(Changed),
    /// All objects of this kind have arrived.
    Listed {
        /// The kind.
        kind: Kind,
        /// The version of the list; empty if the API server does not have the kind.
        version: Version,
        /// All objects, for [`Change::Listed`]: a deletion may have been missed. Absent before the
        /// first object, when no deletion can have been missed.
        objects: Option<BTreeSet<ObjectRef>>,
    },
}

/// The watches of all kinds. They end when it or the receiver is dropped.
#[derive(Debug)]
pub struct Feed {
    statuses: Vec<StatusReader>,
    _tasks: JoinSet<()>,
}

impl Feed {
    /// Starts to watch; must be called within a tokio runtime. Events come in batches: what has
    /// arrived together is sent together.
    ///
    /// The client should be made with `default_retry` off: otherwise kube repeats rejected
    /// requests by itself, and neither a status nor a log line shows it.
    pub fn start(client: Client, options: Options) -> (Self, mpsc::Receiver<Vec<Event>>) {
        let (events, receiver) = mpsc::channel(WAITING_BATCHES);
        let mut feed = Self { statuses: Vec::new(), _tasks: JoinSet::new() };
        for (kind, selectors) in options.watches {
            let sink = ListedObjects { kind, delivered: false, listed: None };
            let target = Target { selectors, tolerated: tolerated(kind), ..target(kind) };
            let (status, task) = watch::run(
                client.clone(),
                target,
                options.watch.clone(),
                ObjectSeed(kind),
                sink,
                events.clone(),
            );
            feed.statuses.push(status);
            feed._tasks.spawn(task);
        }
        (feed, receiver)
    }

    /// The status of each kind's watch, in the order of [`Kind`]. Cheap enough for every scrape.
    pub fn status(&self) -> Vec<Status> {
        self.statuses.iter().map(StatusReader::read).collect()
    }
}

fn target(kind: Kind) -> Target {
    let group = if kind.api_version() == "v1" { "api" } else { "apis" };
    let path = format!("/{group}/{}/{}", kind.api_version(), kind.resource());
    Target::new(kind.resource(), path)
}

/// Without ServiceCIDRs and PodLocators nearhop works too: the API server may be too old, lack the
/// custom resource, or not grant what older versions of nearhop did not need.
fn tolerated(kind: Kind) -> Option<Tolerated> {
    match kind {
        Kind::ServiceCidr => Some(Tolerated {
            codes: &[403, 404],
            // An API server gets ServiceCIDRs with its next version.
            longest_pause: Duration::MAX,
            describe: |error, code| {
                let cure = if code == 403 {
                    "grant list and watch on servicecidrs of networking.k8s.io"
                } else {
                    "use Kubernetes 1.33 or later"
                };
                format!("{error}; ServiceCIDRs are not used: {cure}, or name the ranges by a flag")
            },
        }),
        Kind::Locator => Some(Tolerated {
            codes: &[404],
            // After the custom resource is installed, PodLocators work within seconds.
            longest_pause: Duration::from_secs(5),
            describe: |_, _| {
                "the API server does not have podlocators; install the custom resource: \
                 nearhop manifests | kubectl apply -f -"
                    .to_owned()
            },
        }),
        _ => None,
    }
}

impl Decoder for ObjectSeed {
    type Object = Changed;

    fn decode(self, json: &[u8]) -> Option<Changed> {
        Some(decode_object(self.0, json))
    }

    fn unreadable_event(self, line: &[u8], error: &serde_json::Error) -> Option<Changed> {
        Some(salvage_event(self.0, line, error))
    }

    fn version(changed: &Changed) -> &str {
        changed.meta.version.as_str()
    }
}

/// Turns the events of one kind's watch into events of the feed.
struct ListedObjects {
    kind: Kind,
    /// Whether an object was sent: from then on a deletion can be missed.
    delivered: bool,
    /// The objects of a list that is arriving, if [`Event::Listed`] has to name them.
    listed: Option<BTreeSet<ObjectRef>>,
}

impl ListedObjects {
    /// Adds an object, or removes an object that was deleted while the list arrived. An unreadable
    /// object exists all the same if its problem can name it.
    fn note(&mut self, changed: &Changed) {
        self.delivered = true;
        let Some(objects) = &mut self.listed else { return };
        match &changed.change {
            Some(Change::Put(object)) => _ = objects.insert(object.reference()),
            Some(Change::Gone(object)) => _ = objects.remove(object),
            _ => objects.extend(changed.problems.iter().filter_map(
                |problem| match &problem.subject {
                    Subject::Object(object) => Some(object.clone()),
                    Subject::Setting(_) | Subject::Unknown(_) => None,
                },
            )),
        }
    }
}

impl Sink<Changed> for ListedObjects {
    type Event = Event;

    fn convert(&mut self, event: watch::Event<Changed>) -> Option<Event> {
        let changed = match event {
            watch::Event::ListStarted => {
                self.listed = self.delivered.then(BTreeSet::new);
                return None;
            }
            watch::Event::Listed(version) => {
                // A resource that the API server does not have leaves no object behind.
                self.delivered &= !version.as_str().is_empty();
                return Some(Event::Listed {
                    kind: self.kind,
                    version,
                    objects: self.listed.take(),
                });
            }
            watch::Event::Put(changed) => changed,
            watch::Event::Gone(changed) => changed.into_gone(),
            watch::Event::Failed => return None,
        };
        self.note(&changed);
        Some(Event::Changed(changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_optional_kinds_describe_the_fix() {
        let describe = |kind, code| (tolerated(kind).unwrap().describe)("no", code);
        assert!(describe(Kind::Locator, 404).contains("nearhop manifests | kubectl apply"));
        assert!(describe(Kind::ServiceCidr, 404).contains("Kubernetes 1.33"));
        assert!(describe(Kind::ServiceCidr, 403).contains("grant list and watch"));
        assert!(tolerated(Kind::Pod).is_none(), "every API server has Pods");
    }

    #[test]
    fn paths_follow_the_api_version() {
        assert_eq!(target(Kind::Pod).path, "/api/v1/pods");
        assert_eq!(target(Kind::Slice).path, "/apis/discovery.k8s.io/v1/endpointslices");
    }
}
