//! Session affinity: which client stays with which endpoint of a Service port.
//!
//! Each Service port with `sessionAffinity: ClientIP` has a map of its own from a client's address
//! to its endpoint, whichever of the Service's addresses the client uses. The kernel bounds each
//! map, so that a flood of clients of one Service leaves the others' room alone. Where a policy
//! Local sends some clients to the endpoints on this node only, a second map remembers those
//! endpoints: what the first one names may be elsewhere.

use nearhop_core::{Family, Name, Protocol, ServiceKey, ServicePortKey};

use crate::object::{Field, Set, SetData, SetKind};

/// The one map of all Services that versions before per-port maps had, by client, address and port.
pub const LEGACY_MAP: &str = "affinity";

/// How the clients of a frontend stay with their endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The Service port, as in kernel names; see [`port_name`].
    pub port: Name,
    /// How long a client stays without a new connection, in seconds.
    pub seconds: u32,
    /// Which endpoints the frontend's own slots hold.
    pub reach: Reach,
    /// Which maps the Service port has.
    pub maps: Maps,
}

/// Which endpoints a client may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Those that this node uses for the whole cluster.
    Cluster,
    /// Those on this node, by a policy Local.
    Local,
}

/// Which maps a Service port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maps {
    /// The one for [`Reach::Cluster`].
    One,
    /// One for each reach.
    Both,
}

impl Maps {
    /// The reaches that have a map.
    pub fn reaches(self) -> &'static [Reach] {
        match self {
            Self::One => &[Reach::Cluster],
            Self::Both => &[Reach::Cluster, Reach::Local],
        }
    }
}

/// `namespace/name/protocol/port`, as kube-proxy names what belongs to a Service port. nft reads
/// slashes in names; a colon it does not.
pub fn port_name(key: &ServicePortKey) -> Name {
    let ServicePortKey { service, port, protocol } = key;
    let protocol = protocol_word(*protocol);
    let slash = if port.is_empty() { "" } else { "/" };
    Name::from(format!("{service}/{protocol}{slash}{port}"))
}

/// The Service of a port's name.
pub fn service_of(port: &str) -> Option<ServiceKey> {
    let mut parts = port.splitn(3, '/');
    Some(ServiceKey::new(parts.next()?, parts.next()?))
}

/// The name of a Service port's map.
pub fn map_name(port: &str, reach: Reach) -> Name {
    match reach {
        Reach::Cluster => Name::from(format!("affinity/{port}")),
        Reach::Local => Name::from(format!("affinity-local/{port}")),
    }
}

/// The Service port that a map belongs to. None for all other sets.
pub fn port_of(map: &str) -> Option<(&str, Reach)> {
    let cluster = map.strip_prefix("affinity/").map(|port| (port, Reach::Cluster));
    cluster.or_else(|| map.strip_prefix("affinity-local/").map(|port| (port, Reach::Local)))
}

/// The definition of a Service port's map.
pub fn define_map(name: Name, family: Family) -> Set {
    let address = Field::Address(family);
    let data = SetData::Value(vec![address, Field::Port]);
    Set { name, key: vec![address], data, kind: SetKind::Dynamic, comment: None }
}

/// The word for a protocol in kernel names.
fn protocol_word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_tells_its_service_port() {
        let service = ServiceKey::new("local", "web");
        let key = ServicePortKey { service, port: "http".into(), protocol: Protocol::Tcp };
        let port = port_name(&key);
        assert_eq!(port, "local/web/tcp/http");
        assert_eq!(service_of(&port), Some(key.service));
        for reach in [Reach::Cluster, Reach::Local] {
            assert_eq!(port_of(&map_name(&port, reach)), Some((port.as_str(), reach)));
        }
        assert_eq!(port_of(LEGACY_MAP), None);
        assert_eq!(port_of("affinity-services"), None);
    }
}
