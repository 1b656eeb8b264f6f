//! Session affinity: which client uses which endpoint of a Service port.
//!
//! Each Service port with `sessionAffinity: ClientIP` has its own map from a client's address to
//! its endpoint, for all addresses of the Service. The kernel limits the size of each map, so that
//! many clients of one Service do not take the space of others. If a policy `Local` sends some
//! clients only to local endpoints, a second map records those: the endpoint in the first map may
//! be on another node.

use nearhop_core::{Family, Name, Protocol, ServiceKey, ServicePortKey};

use crate::object::{Field, Set, SetData, SetKind};

/// The map of versions before per-port maps: one for all Services, by client, address and port.
pub const LEGACY_MAP: &str = "affinity";

/// Session affinity of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The Service port, as in kernel names; see [`port_name`].
    pub port: Name,
    /// Timeout after the last connection of a client, in seconds.
    pub seconds: u32,
    /// Which endpoints the frontend's own slots contain.
    pub reach: Reach,
    /// Which maps the Service port has.
    pub maps: Maps,
}

/// Which endpoints a client may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Those that this node uses for cluster-wide traffic.
    Cluster,
    /// Those on this node, under a policy `Local`.
    Local,
}

/// Which maps a Service port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maps {
    /// Only the one for [`Reach::Cluster`].
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

/// `namespace/name/protocol/port`, like kube-proxy's names for a Service port. nft can read slashes
/// in names, but not colons.
pub fn port_name(key: &ServicePortKey) -> Name {
    let ServicePortKey { service, port, protocol } = key;
    let protocol = protocol_word(*protocol);
    let slash = if port.is_empty() { "" } else { "/" };
    Name::from(format!("{service}/{protocol}{slash}{port}"))
}

/// The Service in a port's name.
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

/// The name of a protocol in kernel names.
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
    fn map_names_contain_the_service_port() {
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
