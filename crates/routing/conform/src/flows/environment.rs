//! The node of a case: the settings of the file, overridden by those of the case.

use std::net::IpAddr;

use nearhop_core::model::Node;
use nearhop_core::route::Place;
use nearhop_core::{Cidr, Family};
use nearhop_netfilter::config::{Config, LocalTraffic, Masquerade, NodePortAddresses};
use serde_json::Value;

use crate::objects::{address, cidr, family_or_ipv4};
use crate::read::{CaseError, Field};

/// The text for detection by source address in the environment of a file.
const BY_POD_CIDR: &str = "source address inside pod_cidr";

pub(super) struct Environment<'a> {
    case: Field<'a>,
    shared: Field<'a>,
    family: Family,
}

impl<'a> Environment<'a> {
    pub(super) fn of(case: &Field<'a>, file: &Field<'a>) -> Result<Self, CaseError> {
        let shared = file.get("environment")?;
        let mut environment = Self { case: case.clone(), shared, family: Family::Ipv4 };
        environment.family = family_or_ipv4(environment.get("family")?)?;
        Ok(environment)
    }

    fn get(&self, key: &str) -> Result<Field<'a>, CaseError> {
        let own = self.case.get(key)?;
        if own.is_null() { self.shared.get(key) } else { Ok(own) }
    }

    /// The configuration of the rules for the family of the case.
    pub(super) fn config(&self) -> Result<Config, CaseError> {
        let masquerade = match self.get("masquerade_all")?.flag()? {
            true => Masquerade::All,
            false => Masquerade::FromOutside,
        };
        let config = Config::new(self.family);
        Ok(Config {
            masquerade_mark: self.mark()?.unwrap_or(config.masquerade_mark),
            masquerade,
            local: self.local()?,
            nodeport_addresses: self.nodeport_addresses()?,
            service_cidrs: self.ranges(&self.get("service_cidrs")?)?,
            node_ip: self.node_ip()?,
            ..config
        })
    }

    /// Topology of the node.
    pub(super) fn place(&self) -> Result<Place, CaseError> {
        let name = self.get("node_name")?.text_or("test-node")?;
        Ok(Place::of(&Node { labels: self.get("node_labels")?.labels()?, ..Node::new(name) }))
    }

    pub(super) fn node_addresses(&self) -> Result<Vec<IpAddr>, CaseError> {
        self.get("node_ips")?.each(address)
    }

    fn node_ip(&self) -> Result<Option<IpAddr>, CaseError> {
        let mut given = self.get("primary_node_ip")?;
        if given.value().is_object() {
            given = given.get(self.family.as_str())?;
        }
        let of_family = |address: &IpAddr| Family::of(*address) == self.family;
        if given.is_null() {
            return Ok(self.node_addresses()?.into_iter().find(of_family));
        }
        Ok(Some(address(&given)?).filter(of_family))
    }

    /// A number, or its text in hexadecimal.
    fn mark(&self) -> Result<Option<u32>, CaseError> {
        let field = self.get("masquerade_mark")?;
        let read = match field.value() {
            Value::Null => return Ok(None),
            Value::String(text) => u32::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
            other => other.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        read.map(Some).ok_or_else(|| field.error("is not a packet mark of 32 bits"))
    }

    /// How to detect local traffic: `true` or the text means by source address, an object means by
    /// interface.
    fn local(&self) -> Result<Option<LocalTraffic>, CaseError> {
        let field = self.get("local_detector")?;
        match field.value() {
            Value::Null | Value::Bool(false) => return Ok(None),
            Value::Bool(true) => {}
            Value::String(text) if text == BY_POD_CIDR => {}
            Value::Object(_) => {
                let bridge = field.get("bridge")?.name()?.map(LocalTraffic::Bridge);
                let prefix = field.get("interface_prefix")?.name()?;
                let by_interface = bridge.or(prefix.map(LocalTraffic::InterfacePrefix));
                let unknown = || field.error("has neither `bridge` nor `interface_prefix`");
                return by_interface.map(Some).ok_or_else(unknown);
            }
            _ => {
                let known = format!("is not true, false, {BY_POD_CIDR:?} or an object");
                return Err(field.error(known));
            }
        }
        let ranges = self.ranges(&self.get("pod_cidr")?)?;
        Ok(ranges.first().copied().map(LocalTraffic::Source))
    }

    /// The node port addresses of the family.
    fn nodeport_addresses(&self) -> Result<NodePortAddresses, CaseError> {
        let field = self.get("nodeport_addresses")?;
        let primary = |item: &Field<'_>| item.value().as_str() == Some("primary");
        if primary(&field) || field.list().is_ok_and(|items| items.iter().any(primary)) {
            return Ok(NodePortAddresses::primary(self.node_ip()?));
        }
        Ok(NodePortAddresses::within(self.ranges(&field)?))
    }

    /// The family's ranges: one, a list, or either by family.
    fn ranges(&self, field: &Field<'_>) -> Result<Vec<Cidr>, CaseError> {
        let ranges = match field.value() {
            Value::Object(_) => return self.ranges(&field.get(self.family.as_str())?),
            Value::String(_) => vec![cidr(field)?],
            _ => field.each(cidr)?,
        };
        Ok(ranges.into_iter().filter(|range| range.family() == self.family).collect())
    }
}
