//! The kinds that nearhop watches: their names and paths.

use std::fmt;

use nearhop_core::{Name, ObjectRef, PodKey, ServiceKey};

/// A kind of object that can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Services.
    Services,
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Namespaces.
    Namespaces,
    /// EndpointSlices.
    EndpointSlices,
    /// ServiceCIDRs, which servers have since Kubernetes 1.33.
    ServiceCidrs,
    /// PodLocators, which a cluster need not have.
    PodLocators,
}

impl Kind {
    /// The resource, as in paths and RBAC rules.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::EndpointSlices => "endpointslices",
            Self::ServiceCidrs => "servicecidrs",
            Self::PodLocators => "podlocators",
        }
    }

    /// The path of all objects of this kind, in all namespaces.
    pub fn path(self) -> &'static str {
        match self {
            Self::Services => "/api/v1/services",
            Self::Pods => "/api/v1/pods",
            Self::Nodes => "/api/v1/nodes",
            Self::Namespaces => "/api/v1/namespaces",
            Self::EndpointSlices => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::ServiceCidrs => "/apis/networking.k8s.io/v1/servicecidrs",
            Self::PodLocators => "/apis/nearhop.dev/v1alpha1/podlocators",
        }
    }

    /// Whether a server that answers with this code is done without: it is too old, lacks a
    /// definition that has to be installed, or does not grant what older versions of nearhop did
    /// not need.
    pub(crate) fn is_spared(self, code: u16) -> bool {
        match self {
            Self::PodLocators => code == 404,
            Self::ServiceCidrs => matches!(code, 403 | 404),
            _ => false,
        }
    }

    /// The object of this kind with this name, for problems. Without a name it is an unknown one.
    pub(crate) fn object(self, namespace: &str, name: &str) -> ObjectRef {
        let namespaced = !matches!(self, Self::Nodes | Self::Namespaces | Self::ServiceCidrs);
        if name.is_empty() || (namespaced && namespace.is_empty()) {
            return ObjectRef::Unknown(Name::from(format!("among {self}")));
        }
        let (namespace, name) = (Name::from(namespace), Name::from(name));
        match self {
            Self::Services => ObjectRef::Service(ServiceKey { namespace, name }),
            Self::Pods => ObjectRef::Pod(PodKey { namespace, name }),
            Self::Nodes => ObjectRef::Node(name),
            Self::Namespaces => ObjectRef::Namespace(name),
            Self::EndpointSlices => ObjectRef::Slice(namespace, name),
            Self::ServiceCidrs => ObjectRef::ServiceCidr(name),
            Self::PodLocators => ObjectRef::Locator(PodKey { namespace, name }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource())
    }
}
