//! The allocation of one write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nearhop_core::Family;
use nearhop_core::ip::parse_ip_sloppy;
use nearhop_object::FieldError;
use serde_json::{Value, json};

use super::families::{keeps_preference, resolve};
use super::pool::Random;
use super::ranges::{AddressRange, Unavailable};
use super::{Allocator, Holdings, Refusal, Reserved, addresses_of, held_ports};
use crate::json::{int, list_mut, make, text};
use crate::service::{View, carry_over, pair_cluster_ips};

/// The first placeholder port of a dry run.
const BEFORE_FIRST_PLACEHOLDER: i64 = 32_768;

/// Whether values are reserved.
pub(super) enum Mode<'a> {
    Real(&'a mut Allocator, Random<'a>),
    DryRun(&'a Allocator),
}

pub(super) struct Operation<'a> {
    mode: Mode<'a>,
    reserved: Reserved,
}

impl<'a> Operation<'a> {
    pub(super) fn new(mode: Mode<'a>) -> Self {
        Self { mode, reserved: Reserved::default() }
    }

    pub(super) fn into_reserved(self) -> Reserved {
        self.reserved
    }

    pub(super) fn run(&mut self, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        if let Some(old) = old {
            carry_over(new, old);
        }
        pair_cluster_ips(new, old);
        let cluster: Vec<Family> = self.addresses().iter().map(AddressRange::family).collect();
        resolve(new, old, &cluster)?;
        self.cluster_ips(new, old)?;
        let view = View::of(new);
        match old.map(View::of) {
            None => self.new_node_ports(new)?,
            Some(old) if view.has_node_ports() => self.changed_node_ports(new, old)?,
            Some(old) => self.reserved.freed.ports.extend(held_ports(old)),
        }
        self.health_port(new, old.map(View::of))
    }

    fn addresses(&self) -> &[AddressRange] {
        match &self.mode {
            Mode::Real(allocator, _) => &allocator.addresses,
            Mode::DryRun(allocator) => &allocator.addresses,
        }
    }

    fn cluster_ips(&mut self, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        if keeps_preference(new, old) {
            return Ok(());
        }
        let view = View::of(new);
        let was = old.map(View::of).filter(|old| !old.is_external_name());
        let Some(old) = was else { return self.take_ips(new, 0) };
        if old.is_headless() {
            return Ok(());
        }
        if view.is_external_name() {
            self.reserved.freed.ips.extend(addresses_of(old));
            return Ok(());
        }
        match (old.list("ipFamilies").len(), view.list("ipFamilies").len()) {
            (1, 2) => self.take_ips(new, 1),
            (2, 1) => {
                self.reserved.freed.ips.extend(addresses_of(old).into_iter().skip(1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reserves one address per family, beginning with the family at `from`.
    fn take_ips(&mut self, new: &mut Value, from: usize) -> Result<(), Refusal> {
        let view = View::of(new);
        if view.is_external_name() || view.is_headless() {
            return Ok(());
        }
        let families: Vec<Family> =
            view.texts("ipFamilies").into_iter().filter_map(Family::parse).collect();
        let mut ips: Vec<String> =
            view.texts("clusterIPs").into_iter().map(str::to_owned).collect();
        if ips.len() < families.len() {
            ips.resize(families.len(), String::new());
        }
        let name = view.name().to_owned();
        for (i, family) in families.into_iter().enumerate().skip(from) {
            let wanted = ips.get(i).map(String::as_str).unwrap_or_default();
            let given =
                self.take_ip(family, wanted, &name).map_err(|why| why.refusal(&name, &ips))?;
            if let Some(ip) = ips.get_mut(i) {
                *ip = given;
            }
        }
        if let Some(first) = ips.first() {
            *make(new, &["spec", "clusterIP"]) = json!(first);
        }
        *make(new, &["spec", "clusterIPs"]) = json!(ips);
        Ok(())
    }

    fn take_ip(&mut self, family: Family, wanted: &str, name: &str) -> Result<String, NoIp> {
        let ip = parse_ip_sloppy(wanted).map(|ip| ip.to_canonical());
        let (allocator, random) = match &mut self.mode {
            Mode::DryRun(allocator) => {
                return placeholder_ip(&allocator.addresses, family, wanted, ip);
            }
            Mode::Real(allocator, random) => (allocator, random),
        };
        let range = allocator.range_mut(family).ok_or(NoIp::Full)?;
        let taken = match ip {
            Some(ip) => range.take(ip).map(|()| ip).map_err(|why| {
                NoIp::not(
                    wanted,
                    match why {
                        Unavailable::Taken => "provided IP is already allocated",
                        Unavailable::OutOfRange => {
                            "the provided network does not match the current range"
                        }
                    },
                )
            })?,
            None => range.take_any(*random).ok_or(NoIp::Full)?,
        };
        self.reserved.taken.ips.push(taken);
        if name.is_empty() {
            // Kubernetes names the IPAddress after the Service.
            let why = format!(
                "IPAddress.networking.k8s.io \"{taken}\" is invalid: spec.parentRef.name: Required \
                 value"
            );
            return Err(NoIp::not(wanted, &why));
        }
        Ok(if wanted.is_empty() { taken.to_string() } else { wanted.to_owned() })
    }

    /// Ports of a new Service: the same port with several protocols shares one node port.
    fn new_node_ports(&mut self, new: &mut Value) -> Result<(), Refusal> {
        let view = View::of(new);
        if !view.has_node_ports() {
            return Ok(());
        }
        let ports = wanted_ports(view);
        let fill = view.fills_node_ports();
        let mut shared: BTreeMap<i64, i64> = BTreeMap::new();
        let mut given = Vec::with_capacity(ports.len());
        for (i, wanted) in ports.iter().enumerate() {
            let node_port = match (wanted.node_port, shared.get(&wanted.port).copied()) {
                (0, _) if !fill => 0,
                (node_port, Some(known)) if node_port == 0 || node_port == known => known,
                (node_port, Some(_)) => self.take_port(i, node_port)?,
                (_, None) => {
                    let same = ports.iter().filter(|other| other.port == wanted.port);
                    let asked = same.map(|other| other.node_port).find(|port| *port != 0);
                    let port = match asked {
                        Some(port) => self.take_port(i, port)?,
                        None => self.take_any_port()?,
                    };
                    shared.insert(wanted.port, port);
                    port
                }
            };
            given.push(node_port);
        }
        write_node_ports(new, &given);
        Ok(())
    }

    fn changed_node_ports(&mut self, new: &mut Value, old: View<'_>) -> Result<(), Refusal> {
        let view = View::of(new);
        let fill = view.fills_node_ports();
        let was: BTreeSet<i64> = held_ports(old).into_iter().collect();
        let mut now = BTreeSet::new();
        let mut pairs = BTreeSet::new();
        let mut given = Vec::new();
        for (i, wanted) in wanted_ports(view).into_iter().enumerate() {
            let node_port = match wanted.node_port {
                0 if !fill => {
                    given.push(0);
                    continue;
                }
                0 => self.take_any_port()?,
                port if was.contains(&port) || now.contains(&port) => port,
                port => self.take_port(i, port)?,
            };
            if !pairs.insert((wanted.protocol, node_port)) {
                let pair = format!("{{{} {node_port}}}", wanted.protocol);
                return Err(Refusal::Internal(format!("duplicate nodePort: {pair}")));
            }
            now.insert(node_port);
            given.push(node_port);
        }
        self.reserved.freed.ports.extend(was.difference(&now));
        write_node_ports(new, &given);
        Ok(())
    }

    fn health_port(&mut self, new: &mut Value, old: Option<View<'_>>) -> Result<(), Refusal> {
        let view = View::of(new);
        let needed = old.filter(|old| old.needs_health_check());
        match (needed, view.needs_health_check()) {
            (None, true) => {
                let wanted = view.number("healthCheckNodePort");
                let port = if wanted == 0 { self.any_port() } else { self.certain_port(wanted) };
                let port = port.map_err(|why| {
                    let what = if wanted == 0 { "a" } else { "requested" };
                    let text =
                        format!("failed to allocate {what} HealthCheck NodePort {wanted}: {why}");
                    Refusal::Internal(text)
                })?;
                *make(new, &["spec", "healthCheckNodePort"]) = json!(port);
            }
            (Some(old), false) => {
                self.reserved.freed.ports.push(old.number("healthCheckNodePort"));
            }
            _ => {}
        }
        Ok(())
    }

    fn take_port(&mut self, at: usize, port: i64) -> Result<i64, Refusal> {
        self.certain_port(port).map_err(|why| {
            let field = format!("spec.ports[{at}].nodePort");
            Refusal::Invalid(vec![FieldError::invalid(field, &Value::from(port), &why)])
        })
    }

    fn take_any_port(&mut self) -> Result<i64, Refusal> {
        let fail = |why| Refusal::Internal(format!("failed to allocate a nodePort: {why}"));
        self.any_port().map_err(fail)
    }

    fn certain_port(&mut self, port: i64) -> Result<i64, String> {
        let Holdings { ports: taken, .. } = &mut self.reserved.taken;
        match &mut self.mode {
            Mode::Real(allocator, _) => {
                let ports = &mut allocator.ports;
                ports.take(port).map_err(|why| ports.explain(why))?;
            }
            // A dry run does not check the range.
            Mode::DryRun(allocator) => {
                if allocator.ports.is_taken(port) || taken.contains(&port) {
                    return Err(allocator.ports.explain(Unavailable::Taken));
                }
            }
        }
        taken.push(port);
        Ok(port)
    }

    fn any_port(&mut self) -> Result<i64, String> {
        let Holdings { ports: taken, .. } = &mut self.reserved.taken;
        let port = match &mut self.mode {
            Mode::Real(allocator, random) => allocator.ports.take_any(*random),
            Mode::DryRun(_) => {
                let last = taken.iter().max().copied().unwrap_or(BEFORE_FIRST_PLACEHOLDER);
                Some(last.saturating_add(1))
            }
        };
        let port = port.ok_or("range is full")?;
        taken.push(port);
        Ok(port)
    }
}

/// Why no address is allocated.
enum NoIp {
    /// The range is full.
    Full,
    /// The requested address cannot be allocated.
    Not(String),
}

impl NoIp {
    fn not(wanted: &str, why: &str) -> Self {
        let blank = if wanted.is_empty() { "" } else { " " };
        Self::Not(format!("failed to allocate IP{blank}{wanted}: {why}"))
    }

    fn refusal(self, name: &str, ips: &[String]) -> Refusal {
        match self {
            Self::Full => Refusal::Internal(format!(
                "failed to allocate a serviceIP for Service {name:?}: range is full"
            )),
            Self::Not(detail) => {
                let error = FieldError::invalid("spec.clusterIPs", &json!(ips), &detail);
                Refusal::Invalid(vec![error])
            }
        }
    }
}

/// A dry run shows the network address and checks only the range.
fn placeholder_ip(
    ranges: &[AddressRange],
    family: Family,
    wanted: &str,
    ip: Option<IpAddr>,
) -> Result<String, NoIp> {
    let range = ranges.iter().find(|range| range.family() == family).ok_or(NoIp::Full)?;
    match ip {
        None => Ok(range.cidr().first().to_string()),
        Some(ip) if range.contains(ip) => Ok(wanted.to_owned()),
        Some(ip) => {
            let why = format!(
                "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}",
                range.cidr()
            );
            Err(NoIp::not(wanted, &why))
        }
    }
}

/// The request of a port.
struct WantedPort<'a> {
    port: i64,
    protocol: &'a str,
    node_port: i64,
}

fn wanted_ports(view: View<'_>) -> Vec<WantedPort<'_>> {
    let number = |port: &Value, name: &str| int(port, &[name]).unwrap_or_default();
    let ports = view.list("ports").iter().map(|port| WantedPort {
        port: number(port, "port"),
        protocol: text(port, &["protocol"]),
        node_port: number(port, "nodePort"),
    });
    ports.collect()
}

fn write_node_ports(service: &mut Value, given: &[i64]) {
    for (port, given) in list_mut(service, &["spec", "ports"]).iter_mut().zip(given) {
        if *given != 0 {
            *make(port, &["nodePort"]) = json!(given);
        }
    }
}
