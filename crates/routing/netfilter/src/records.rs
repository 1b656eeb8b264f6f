//! Copies session affinity records to a new table or layout.
//!
//! A record is copied, with its remaining time, if its endpoint is still eligible for the client's
//! Service port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nearhop_core::{EndpointKey, Family, Name};

use crate::affinity::{LEGACY_MAP, Reach, map_name, port_of};
use crate::desired::DesiredTable;
use crate::frontend::{At, Frontend};
use crate::layout::{read_address, read_endpoint, read_frontend};
use crate::object::{Bytes, Data, Element, Timed};

/// Converts the records of other maps to records of the desired table's maps, by map.
pub fn carry(desired: &DesiredTable, held: &[(Name, Vec<Timed>)]) -> BTreeMap<Name, Vec<Timed>> {
    let mut carrier = Carrier { desired, allowed: BTreeMap::new(), maps: BTreeMap::new() };
    for (map, records) in held {
        for record in records {
            carrier.carry(map, record);
        }
    }
    let maps = carrier.maps.into_iter();
    maps.map(|(map, records)| (map, records.into_values().collect())).collect()
}

/// The endpoint in a record.
pub fn endpoint_of(element: &Element, family: Family) -> Option<EndpointKey> {
    let Data::Value(value) = &element.data else { return None };
    read_endpoint(value, family)
}

struct Carrier<'a> {
    desired: &'a DesiredTable,
    /// Eligible endpoints, by map.
    allowed: BTreeMap<Name, BTreeSet<EndpointKey>>,
    /// The records to keep, by map and client.
    maps: BTreeMap<Name, BTreeMap<Bytes, Timed>>,
}

impl Carrier<'_> {
    fn carry(&mut self, map: &Name, record: &Timed) {
        let family = self.desired.config().family();
        let Some(endpoint) = endpoint_of(&record.element, family) else { return };
        if map != LEGACY_MAP {
            if let Some((port, reach)) = port_of(map) {
                self.keep(&Name::from(port), reach, endpoint, record);
            }
            return;
        }
        let Some((client, frontend)) = read_legacy_key(&record.element.key, family) else { return };
        let Some(port) = self.port_at(&frontend) else { return };
        let element = Element { key: Bytes::EMPTY.address(client), ..record.element.clone() };
        let record = Timed { element, ..*record };
        for reach in [Reach::Cluster, Reach::Local] {
            self.keep(&port, reach, endpoint, &record);
        }
    }

    /// Keeps a record if its map is desired and its endpoint is eligible. Of several records of one
    /// client, the last used one is kept.
    fn keep(&mut self, port: &Name, reach: Reach, endpoint: EndpointKey, record: &Timed) {
        let map = map_name(port, reach);
        if !self.desired.maps().contains(&map) {
            return;
        }
        let allowed = self.allowed.entry(map.clone());
        let allowed = allowed.or_insert_with(|| self.desired.sticky_endpoints(port, reach));
        if !allowed.contains(&endpoint) {
            return;
        }
        let kept = self.maps.entry(map).or_default().entry(record.element.key);
        let kept = kept.or_insert_with(|| record.clone());
        if kept.expires_ms < record.expires_ms {
            *kept = record.clone();
        }
    }

    /// The Service port of an address or a node port.
    fn port_at(&self, frontend: &Frontend) -> Option<Name> {
        let by_port = Frontend { at: At::Node, ..*frontend };
        let found = self.desired.frontend(frontend).or_else(|| self.desired.frontend(&by_port));
        found.and_then(|(_, entry)| Some(entry.affinity.as_ref()?.port.clone()))
    }
}

/// The client and the frontend, by address even for a node port.
fn read_legacy_key(key: &Bytes, family: Family) -> Option<(IpAddr, Frontend)> {
    let (client, rest) = read_address(key.as_slice(), family)?;
    let (address, rest) = read_address(rest, family)?;
    Some((client, read_frontend(At::Address(address), rest)?))
}
