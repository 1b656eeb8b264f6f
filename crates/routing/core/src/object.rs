//! The kinds of objects that nearhop watches: objects, references and changes.

use std::collections::BTreeSet;
use std::fmt;

use crate::hint::HintState;
use crate::key::{Name, PodKey, ServiceKey};
use crate::model::{Locator, Namespace, Node, Pod, Service, ServiceCidr, Slice};

/// A kind of object, in the order in which a batch of changes is applied: endpoints come after the
/// objects that they depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Node.
    Node,
    /// Namespace.
    Namespace,
    /// ServiceCIDR, available since Kubernetes 1.33.
    ServiceCidr,
    /// Service.
    Service,
    /// Pod.
    Pod,
    /// EndpointSlice.
    Slice,
    /// PodLocator, an optional custom resource.
    Locator,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Node,
        Self::Namespace,
        Self::ServiceCidr,
        Self::Service,
        Self::Pod,
        Self::Slice,
        Self::Locator,
    ];

    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Node => ("v1", "Node", "nodes"),
            Self::Namespace => ("v1", "Namespace", "namespaces"),
            Self::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs"),
            Self::Service => ("v1", "Service", "services"),
            Self::Pod => ("v1", "Pod", "pods"),
            Self::Slice => ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
            Self::Locator => ("nearhop.dev/v1alpha1", "PodLocator", "podlocators"),
        }
    }

    /// `apiVersion`: API group and version.
    pub const fn api_version(self) -> &'static str {
        self.names().0
    }

    /// `kind`.
    pub const fn as_str(self) -> &'static str {
        self.names().1
    }

    /// The resource, as in paths and RBAC rules.
    pub const fn resource(self) -> &'static str {
        self.names().2
    }

    /// Whether objects of this kind are in a namespace.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::Node | Self::Namespace | Self::ServiceCidr)
    }

    /// The path of its collection at the API server: in one namespace, or in the whole cluster.
    pub fn path(self, namespace: Option<&str>) -> String {
        let (version, _, resource) = self.names();
        let root = if version == "v1" { "api" } else { "apis" };
        match namespace {
            Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{resource}"),
            None => format!("/{root}/{version}/{resource}"),
        }
    }

    /// A reference to an object of this kind. The namespace is ignored if the kind is not
    /// namespaced.
    pub fn reference(self, namespace: Name, name: Name) -> ObjectRef {
        match self {
            Self::Node => ObjectRef::Node(name),
            Self::Namespace => ObjectRef::Namespace(name),
            Self::ServiceCidr => ObjectRef::ServiceCidr(name),
            Self::Service => ObjectRef::Service(ServiceKey { namespace, name }),
            Self::Pod => ObjectRef::Pod(PodKey { namespace, name }),
            Self::Slice => ObjectRef::Slice(namespace, name),
            Self::Locator => ObjectRef::Locator(PodKey { namespace, name }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A reference to an object: its kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectRef {
    /// A Node.
    Node(Name),
    /// A Namespace.
    Namespace(Name),
    /// A ServiceCIDR.
    ServiceCidr(Name),
    /// A Service.
    Service(ServiceKey),
    /// A Pod.
    Pod(PodKey),
    /// An EndpointSlice, by namespace and name.
    Slice(Name, Name),
    /// A PodLocator.
    Locator(PodKey),
}

impl ObjectRef {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Namespace(_) => Kind::Namespace,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
            Self::Service(_) => Kind::Service,
            Self::Pod(_) => Kind::Pod,
            Self::Slice(..) => Kind::Slice,
            Self::Locator(_) => Kind::Locator,
        }
    }

    /// Its path at the API server.
    pub fn path(&self) -> String {
        let (namespace, name) = match self {
            Self::Node(name) | Self::Namespace(name) | Self::ServiceCidr(name) => (None, name),
            Self::Service(ServiceKey { namespace, name })
            | Self::Pod(PodKey { namespace, name })
            | Self::Locator(PodKey { namespace, name })
            | Self::Slice(namespace, name) => (Some(namespace.as_str()), name),
        };
        format!("{}/{name}", self.kind().path(namespace))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind())?;
        match self {
            Self::Node(name) | Self::Namespace(name) | Self::ServiceCidr(name) => name.fmt(f),
            Self::Service(key) | Self::Pod(key) | Self::Locator(key) => key.fmt(f),
            Self::Slice(namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

/// An object of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Node.
    Node(Node),
    /// A Namespace.
    Namespace(Namespace),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidr),
    /// A Service.
    Service(Box<Service>),
    /// A Pod.
    Pod(Box<Pod>),
    /// An EndpointSlice.
    Slice(Box<Slice>),
    /// A PodLocator.
    Locator(Box<Locator>),
}

impl Object {
    /// A reference to this object.
    pub fn reference(&self) -> ObjectRef {
        match self {
            Self::Node(node) => ObjectRef::Node(node.name.clone()),
            Self::Namespace(namespace) => ObjectRef::Namespace(namespace.name.clone()),
            Self::ServiceCidr(cidr) => ObjectRef::ServiceCidr(cidr.name.clone()),
            Self::Service(service) => ObjectRef::Service(service.key.clone()),
            Self::Pod(pod) => ObjectRef::Pod(pod.key.clone()),
            Self::Slice(slice) => slice.reference(),
            Self::Locator(locator) => ObjectRef::Locator(locator.key.clone()),
        }
    }
}

impl From<Node> for Object {
    fn from(node: Node) -> Self {
        Self::Node(node)
    }
}

impl From<Namespace> for Object {
    fn from(namespace: Namespace) -> Self {
        Self::Namespace(namespace)
    }
}

impl From<ServiceCidr> for Object {
    fn from(cidr: ServiceCidr) -> Self {
        Self::ServiceCidr(cidr)
    }
}

impl From<Service> for Object {
    fn from(service: Service) -> Self {
        Self::Service(Box::new(service))
    }
}

impl From<Pod> for Object {
    fn from(pod: Pod) -> Self {
        Self::Pod(Box::new(pod))
    }
}

impl From<Slice> for Object {
    fn from(slice: Slice) -> Self {
        Self::Slice(Box::new(slice))
    }
}

impl From<Locator> for Object {
    fn from(locator: Locator) -> Self {
        Self::Locator(Box::new(locator))
    }
}

/// A change of the cluster, or of nearhop's own state about it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An object was created or updated.
    Put(Object),
    /// An object was deleted.
    Gone(ObjectRef),
    /// A list of all objects of a kind is complete. Objects that are not in it were deleted.
    Listed(Kind, BTreeSet<ObjectRef>),
    /// A plan was written. Its state is the input of the next plan.
    Planned(ServiceKey, HintState),
}

impl Change {
    /// The change that creates or updates this object.
    pub fn put(object: impl Into<Object>) -> Self {
        Self::Put(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_group_version_and_namespace() {
        assert_eq!(Kind::Pod.path(None), "/api/v1/pods");
        assert_eq!(
            Kind::Slice.path(Some("a")),
            "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices"
        );
        let (namespace, name) = (Name::from("a"), Name::from("b"));
        let path = |kind: Kind| kind.reference(namespace.clone(), name.clone()).path();
        assert_eq!(path(Kind::Service), "/api/v1/namespaces/a/services/b");
        assert_eq!(path(Kind::Namespace), "/api/v1/namespaces/b");
        assert_eq!(path(Kind::Locator), "/apis/nearhop.dev/v1alpha1/namespaces/a/podlocators/b");
    }
}
