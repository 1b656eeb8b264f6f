//! Pods.

use std::net::IpAddr;
use std::num::NonZeroI64;
use std::sync::Arc;

use jiff::Timestamp;

use crate::key::{Name, PodKey, Protocol};
use crate::labels::Labels;

/// A container port that a named `targetPort` can refer to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerPort {
    /// Name; a `targetPort` cannot refer to an unnamed port.
    pub name: Name,
    /// Number.
    pub port: u16,
    /// Protocol, which must also match.
    pub protocol: Protocol,
}

/// The addresses of a Pod or endpoint. Usually there is one, which needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addresses {
    /// One address.
    One(IpAddr),
    /// No address, or several.
    Many(Box<[IpAddr]>),
}

impl Addresses {
    /// The addresses as a slice.
    pub fn as_slice(&self) -> &[IpAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Many(addresses) => addresses,
        }
    }

    /// The address that proxies use.
    pub fn first(&self) -> Option<IpAddr> {
        self.as_slice().first().copied()
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses = addresses.into_iter();
        match (addresses.next(), addresses.next()) {
            (Some(only), None) => Self::One(only),
            (Some(first), Some(second)) => {
                Self::Many([first, second].into_iter().chain(addresses).collect())
            }
            (None, _) => Self::Many(Box::default()),
        }
    }
}

/// A time in whole seconds, as Kubernetes stores the times of conditions. An `Option` of it also
/// needs only eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second(NonZeroI64);

impl From<Timestamp> for Second {
    fn from(time: Timestamp) -> Self {
        let flipped = NonZeroI64::new(time.as_second() ^ i64::MIN);
        Self(flipped.expect("no timestamp is the smallest number of seconds"))
    }
}

impl From<Second> for Timestamp {
    fn from(second: Second) -> Self {
        Self::from_second(second.0.get() ^ i64::MIN).expect("it was a timestamp")
    }
}

/// `spec.hostname` and `spec.subdomain` of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDns {
    /// Host name.
    pub hostname: Name,
    /// Subdomain. The host name counts only if the subdomain is the Service's name.
    pub subdomain: Name,
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// `metadata.uid`.
    pub uid: Name,
    /// Labels, which the selectors of Services match.
    pub labels: Labels,
    /// `status.podIPs`.
    pub ips: Addresses,
    /// `spec.nodeName`.
    pub node: Option<Name>,
    /// Host name and subdomain, if set.
    pub dns: Option<Box<PodDns>>,
    /// Ports of containers, then of sidecars, in the order of lookup by name. A thin pointer,
    /// shared between Pods.
    pub ports: Arc<Vec<ContainerPort>>,
    /// lastTransitionTime of the Ready condition.
    pub ready_since: Option<Second>,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether its phase is Failed or Succeeded.
    pub terminal: bool,
}

impl Pod {
    /// A ready Pod without labels, addresses or node. The caller sets the other fields.
    pub fn new(key: PodKey) -> Self {
        Self {
            key,
            uid: Name::from(""),
            labels: Labels::default(),
            ips: Addresses::Many(Box::default()),
            node: None,
            dns: None,
            ports: Arc::default(),
            ready_since: None,
            ready: true,
            deleting: false,
            terminal: false,
        }
    }

    /// Whether it can be an endpoint: it is not terminal and has an address.
    pub fn is_eligible(&self) -> bool {
        !self.terminal && !self.ips.as_slice().is_empty()
    }
}
