//! Compiles routes to frontends. It makes no decision about topology.

use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::model::{Service, SourceRanges, TrafficPolicy};
use nearhop_core::route::{Route, RouteKey, RouteSet, Verdict};
use nearhop_core::{Cidr, EndpointKey, Family, Name};

use crate::affinity::{Affinity, Maps, Reach, port_name};
use crate::config::Config;
use crate::frontend::{
    AddressKind, At, Entry, Frontend, Path, Program, Refusal, Slots, merge_ranges,
};
use crate::slots::assign_slots;

/// The previous slots of a frontend's endpoints.
pub trait PreviousSlots {
    /// The slots of its endpoints.
    fn endpoints(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>>;
    /// The slots of its local endpoints, if they are separate.
    fn local(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>>;
}

impl PreviousSlots for Program {
    fn endpoints(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>> {
        Some(self.frontends.get(frontend)?.endpoints.endpoints().clone())
    }

    fn local(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>> {
        match &self.frontends.get(frontend)?.path {
            Path::LocalOnly(slots) => Some(slots.endpoints().clone()),
            Path::Direct | Path::Masquerade => None,
        }
    }
}

/// Compiles the routes of one Service in the family of `config`. None if it has no address in that
/// family: a headless Service, or one of the other family.
pub fn compile<'a>(
    routes: impl Iterator<Item = (&'a RouteKey, &'a Route)>,
    config: &Config,
    before: &dyn PreviousSlots,
) -> Option<Program> {
    let mut program = Program::default();
    for (key, route) in routes.filter(|(key, _)| key.family == config.family()) {
        let cluster_ip = route.service.cluster_ip(key.family)?;
        program.cluster_ip = Some(cluster_ip);
        compile_port(&mut program, key, route, cluster_ip, config, before);
    }
    program.cluster_ip.is_some().then_some(program)
}

fn compile_port(
    program: &mut Program,
    key: &RouteKey,
    route: &Route,
    cluster_ip: IpAddr,
    config: &Config,
    before: &dyn PreviousSlots,
) {
    let port = route.service_port();
    let protocol = port.protocol;
    let at = |address| Frontend { at: At::Address(address), protocol, port: port.port };
    let compiler = Compiler { key, route, before, name: Name::from(display(key)) };

    let frontend = at(cluster_ip);
    program.frontends.insert(frontend, compiler.internal(&frontend));
    let of_family = |address: &IpAddr| Family::of(*address) == key.family;
    let sources = allowed_sources(&route.service, config);
    // In order of precedence: an address that is both has the source ranges of the load balancer.
    let load_balancer = (AddressKind::LoadBalancer, &route.service.load_balancer_ips, sources);
    let external = (AddressKind::ExternalIp, &route.service.external_ips, None);
    for (kind, addresses, sources) in [load_balancer, external] {
        for address in addresses.iter().copied().filter(of_family) {
            let entry = || compiler.external(kind, &at(address), sources.clone());
            program.frontends.entry(at(address)).or_insert_with(entry);
        }
    }
    if port.node_port != 0 {
        let frontend = Frontend { at: At::Node, protocol, port: port.node_port };
        program.frontends.insert(frontend, compiler.external(AddressKind::Node, &frontend, None));
    }
    let local = route.decision.reachable().into_iter().filter(|backend| backend.local);
    program.hairpins.extend(local.map(|backend| (backend.key, protocol)));
}

struct Compiler<'a> {
    key: &'a RouteKey,
    route: &'a Route,
    before: &'a dyn PreviousSlots,
    name: Name,
}

impl Compiler<'_> {
    fn entry(
        &self,
        address: AddressKind,
        path: Path,
        endpoints: Slots,
        refusal: Option<Refusal>,
    ) -> Entry {
        let (name, affinity) = (self.name.clone(), self.affinity());
        Entry { name, address, path, endpoints, refusal, affinity, sources: None }
    }

    fn affinity(&self) -> Option<Affinity> {
        let seconds = self.route.service.session_affinity?.as_secs() as u32;
        let policy = self.route.decision.policy;
        let local = [policy.internal, policy.external].contains(&TrafficPolicy::Local);
        let maps = if local { Maps::Both } else { Maps::One };
        Some(Affinity { port: port_name(&self.key.port), seconds, reach: Reach::Cluster, maps })
    }

    fn internal(&self, frontend: &Frontend) -> Entry {
        let decision = &self.route.decision;
        let (set, refusal) = match decision.internal {
            Verdict::Cluster => (&decision.cluster, None),
            Verdict::Local => (&decision.local, None),
            Verdict::Reject => (&None, Some(Refusal::Reject)),
            Verdict::Drop => (&None, Some(Refusal::Drop)),
        };
        let slots = slots(set.as_ref(), self.before.endpoints(frontend));
        let mut entry = self.entry(AddressKind::ClusterIp, Path::Direct, slots, refusal);
        if decision.policy.internal == TrafficPolicy::Local
            && let Some(affinity) = &mut entry.affinity
        {
            affinity.reach = Reach::Local;
        }
        entry
    }

    fn external(
        &self,
        address: AddressKind,
        frontend: &Frontend,
        sources: Option<Arc<[(IpAddr, IpAddr)]>>,
    ) -> Entry {
        let decision = &self.route.decision;
        let before = self.before.endpoints(frontend);
        let refusal = match decision.external {
            Some(Verdict::Cluster | Verdict::Local) => None,
            Some(Verdict::Drop) => Some(Refusal::Drop),
            Some(Verdict::Reject) | None => Some(Refusal::Reject),
        };
        let cluster = decision.cluster.as_ref().filter(|_| decision.has_any);
        let path = match decision.policy.external {
            TrafficPolicy::Cluster => Path::Masquerade,
            TrafficPolicy::Local => {
                Path::LocalOnly(slots(decision.local.as_ref(), self.before.local(frontend)))
            }
        };
        Entry { sources, ..self.entry(address, path, slots(cluster, before), refusal) }
    }
}

fn slots(set: Option<&RouteSet>, before: Option<Arc<[EndpointKey]>>) -> Slots {
    let backends = set.map_or(&[][..], |set| &set.backends);
    let before: &[EndpointKey] = before.as_deref().unwrap_or_default();
    assign_slots(before, backends)
}

/// The sources that may reach the load balancer IPs; none if there is no restriction.
///
/// If the node is an allowed source, so are the load balancer IPs themselves: a connection from the
/// node to one of them may have it as its source.
fn allowed_sources(service: &Service, config: &Config) -> Option<Arc<[(IpAddr, IpAddr)]>> {
    let SourceRanges::Only(ranges) = &service.source_ranges else { return None };
    let family = config.family();
    let of_family = |address: &IpAddr| Family::of(*address) == family;
    let mut own: Vec<Cidr> =
        ranges.iter().copied().filter(|range| range.family() == family).collect();
    // Ranges of the other family only, or a range with all addresses: no check, as in kube-proxy.
    let all = own.iter().any(|range| range.prefix() == 0);
    if all || (own.is_empty() && !ranges.is_empty()) {
        return None;
    }
    if config.node_ip.is_some_and(|node| own.iter().any(|range| range.contains(node))) {
        let vips = service.load_balancer_ips.iter().copied().filter(of_family);
        own.extend(vips.map(|vip| Cidr::new(vip, u8::MAX)));
    }
    Some(merge_ranges(own).into())
}

/// `namespace/name:port`, as kube-proxy shows it.
fn display(key: &RouteKey) -> String {
    let service = &key.port.service;
    if key.port.port.is_empty() {
        service.to_string()
    } else {
        format!("{service}:{}", key.port.port)
    }
}
