//! The kinds that the manager reads and writes, as one table.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nearhop_feed::watch::Event;
use serde_json::Value;

use crate::cache::{Cache, Change};
use crate::object::ObjectKey;

macro_rules! kinds {
    ($($kind:ident in $api:literal as $plural:literal is $field:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind { $(
            #[doc = concat!("`", stringify!($kind), "`.")]
            $kind,
        )* }

        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum Object { $(
            #[doc = concat!("A `", stringify!($kind), "`.")]
            $kind(Box<$kind>),
        )* }

        /// Events of one kind's watch.
        #[derive(Debug)]
        pub(crate) enum WatchBatch { $( $kind(Vec<Event<$kind>>), )* }

        /// Changes of the cached objects of one kind.
        #[derive(Debug)]
        pub(crate) enum Changes { $( $kind(Vec<Change<$kind>>), )* }

        /// All cached objects.
        #[derive(Debug, Default)]
        pub(crate) struct Objects { $( pub(crate) $field: Cache<$kind>, )* }

        impl Kind {
            #[must_use]
            pub(crate) const fn name(self) -> &'static str {
                match self { $( Self::$kind => stringify!($kind), )* }
            }

            /// The plural resource name, as in API paths.
            pub(crate) const fn plural(self) -> &'static str {
                match self { $( Self::$kind => $plural, )* }
            }

            pub(crate) const fn api_version(self) -> &'static str {
                match self { $( Self::$kind => $api, )* }
            }

            pub(crate) fn read(self, value: Value) -> serde_json::Result<Object> {
                match self {
                    $( Self::$kind => serde_json::from_value(value).map(Object::$kind), )*
                }
            }
        }

        impl Object {
            #[must_use]
            pub(crate) const fn kind(&self) -> Kind {
                match self { $( Self::$kind(_) => Kind::$kind, )* }
            }

            #[must_use]
            pub(crate) fn meta(&self) -> &ObjectMeta {
                match self { $( Self::$kind(object) => &object.metadata, )* }
            }

            /// Serializes the object as JSON.
            pub(crate) fn write(&self) -> Vec<u8> {
                let json = match self { $( Self::$kind(object) => serde_json::to_vec(object), )* };
                json.expect("API objects can be written as JSON")
            }
        }

        impl WatchBatch {
            /// The kind, if its watch failed.
            pub(crate) fn failed(&self) -> Option<Kind> {
                match self { $( Self::$kind(events) => {
                    events.iter().any(|event| matches!(event, Event::Failed)).then_some(Kind::$kind)
                } )* }
            }
        }

        impl Objects {
            /// Applies the events of a watch.
            pub(crate) fn on_watch(&mut self, batch: WatchBatch) -> Changes {
                match batch {
                    $( WatchBatch::$kind(events) => Changes::$kind(
                        events.into_iter().flat_map(|event| self.$field.on_watch(event)).collect(),
                    ), )*
                }
            }

            /// Applies the response to an own write.
            pub(crate) fn wrote(&mut self, object: Object) -> Changes {
                match object {
                    $( Object::$kind(object) => Changes::$kind(self.$field.wrote(*object)), )*
                }
            }

            /// Applies a deletion.
            pub(crate) fn deleted(&mut self, kind: Kind, name: &ObjectKey, uid: &str) -> Changes {
                match kind {
                    $( Kind::$kind => Changes::$kind(self.$field.deleted(name, uid)), )*
                }
            }

            /// Whether all watched kinds have been listed.
            pub(crate) fn is_synced(&self, watched: &[Kind]) -> bool {
                watched.iter().all(|kind| match kind {
                    $( Kind::$kind => self.$field.is_synced(), )*
                })
            }
        }

        $( impl From<$kind> for Object {
            fn from(object: $kind) -> Self { Self::$kind(Box::new(object)) }
        } )*
    };
}

kinds! {
    Node in "v1" as "nodes" is nodes,
    Pod in "v1" as "pods" is pods,
    Namespace in "v1" as "namespaces" is namespaces,
    Service in "v1" as "services" is services,
    ServiceAccount in "v1" as "serviceaccounts" is service_accounts,
    ConfigMap in "v1" as "configmaps" is config_maps,
    Lease in "coordination.k8s.io/v1" as "leases" is leases,
    Deployment in "apps/v1" as "deployments" is deployments,
    ReplicaSet in "apps/v1" as "replicasets" is replica_sets,
    DaemonSet in "apps/v1" as "daemonsets" is daemon_sets,
}

impl Kind {
    /// The API path of the kind's objects; the namespace is empty for cluster-scoped kinds.
    pub(crate) fn path(self, namespace: &str) -> String {
        let api = self.api_version();
        let root = if api == "v1" { "/api" } else { "/apis" };
        match namespace {
            "" => format!("{root}/{api}/{}", self.plural()),
            namespace => format!("{root}/{api}/namespaces/{namespace}/{}", self.plural()),
        }
    }

    /// The API path of an object.
    pub(crate) fn object_path(self, key: &ObjectKey) -> String {
        format!("{}/{}", self.path(&key.namespace), key.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_the_api() {
        assert_eq!(Kind::Node.path(""), "/api/v1/nodes");
        assert_eq!(Kind::Pod.path("x"), "/api/v1/namespaces/x/pods");
        assert_eq!(Kind::ReplicaSet.path("x"), "/apis/apps/v1/namespaces/x/replicasets");
    }
}
