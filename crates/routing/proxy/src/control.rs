//! The known cluster state and the pending changes: events in, what to sync out. No kernel, no
//! clock, no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nearhop_api::Changed;
use nearhop_core::model::{Node, ServiceType, Slice};
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::{Affected, World};
use nearhop_core::{Change, Cidr, Family, Kind, Object, ObjectRef, ServiceKey};
use nearhop_feed::Event as FeedEvent;
use nearhop_netfilter::config::Config;

use crate::metrics::ProxyMetrics;
use crate::options::Options;
use crate::trigger::Triggers;

/// The known cluster state and the pending changes.
pub(crate) struct Control {
    options: Options,
    world: World,
    /// The Node as last seen. It is kept when the Node object is deleted, because the machine still
    /// exists.
    last_node: Option<Arc<Node>>,
    /// The ranges of the ServiceCIDRs that are ready.
    service_cidrs: Vec<Cidr>,
    routes: RouteTable,
    unlisted: BTreeSet<Kind>,
    waiting: Waiting,
    triggers: BTreeMap<Family, Triggers>,
    metrics: ProxyMetrics,
}

/// What the next sync covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// These Services.
    pub(crate) services: BTreeSet<ServiceKey>,
    /// All Services: the topology of the node changed.
    pub(crate) all: bool,
    /// The Node or a ServiceCIDR changed, so the configuration may have changed.
    pub(crate) config: bool,
}

impl Waiting {
    /// Whether no change is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.all && !self.config
    }
}

impl Control {
    /// Creates it with an empty cluster state.
    pub(crate) fn new(options: Options, metrics: ProxyMetrics, started: jiff::Timestamp) -> Self {
        let place = Place { node: Some(options.node.clone()), ..Place::default() };
        let world = World::new(options.settings());
        let families = options.families.iter();
        Self {
            routes: RouteTable::build(&world, place),
            triggers: families.map(|family| (*family, Triggers::new(started))).collect(),
            world,
            last_node: None,
            service_cidrs: Vec::new(),
            unlisted: options.kinds(),
            options,
            waiting: Waiting::default(),
            metrics,
        }
    }

    /// The options of the operator.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The known cluster state.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// All routes.
    pub(crate) fn routes(&self) -> &RouteTable {
        &self.routes
    }

    /// The Node that this proxy serves, if it exists in the API.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.world.node(&self.options.node)
    }

    /// The Node as last seen, for the configuration of the rules. Deleting the Node object does not
    /// remove the machine's addresses or its pod ranges.
    pub(crate) fn last_node(&self) -> Option<&Node> {
        self.last_node.as_deref()
    }

    /// The configuration of the rules of a family.
    pub(crate) fn config(&self, family: Family) -> Config {
        self.options.config(family, self.last_node(), &self.service_cidrs)
    }

    /// Whether the initial list of every kind is complete. Nothing is written before: a Service
    /// without its slices would look like a Service without endpoints.
    pub(crate) fn is_listed(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// Whether a change is pending.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_listed() && !self.waiting.is_empty()
    }

    /// Makes the next sync cover all Services.
    pub(crate) fn want_all(&mut self) {
        self.waiting.all = true;
    }

    /// Takes the pending changes.
    pub(crate) fn take_waiting(&mut self) -> Waiting {
        self.metrics.changes_taken();
        std::mem::take(&mut self.waiting)
    }

    /// Trigger times of one family.
    pub(crate) fn triggers(&mut self, family: Family) -> Option<&mut Triggers> {
        self.triggers.get_mut(&family)
    }

    /// Processes events of the feed.
    pub(crate) fn on_feed(&mut self, events: Vec<FeedEvent>) {
        let mut changes = Vec::new();
        for event in events {
            match event {
                FeedEvent::Changed(Changed { change, problems, .. }) => {
                    for problem in problems {
                        tracing::warn!(%problem, "invalid object");
                    }
                    if let Some(change) = change {
                        self.note(&change);
                        changes.push(change);
                    }
                }
                FeedEvent::Listed { kind, objects, .. } => {
                    changes.extend(objects.map(|objects| Change::Listed(kind, objects)));
                    if self.unlisted.remove(&kind) && self.unlisted.is_empty() {
                        tracing::info!("initial lists complete");
                        self.waiting.all = true;
                    }
                }
            }
        }
        let touched = self.world.apply_all(changes);
        self.touch(touched);
        self.remember_node();
        self.remember_service_cidrs();
        if self.waiting.is_empty() {
            // The state was already known: no change is pending.
            self.metrics.changes_taken();
        }
    }

    fn remember_node(&mut self) {
        match self.world.node(&self.options.node) {
            Some(node) if self.last_node.as_ref() != Some(node) => {
                self.last_node = Some(node.clone());
                self.waiting.config = true;
            }
            _ => {}
        }
    }

    fn remember_service_cidrs(&mut self) {
        let ready = self.world.service_cidrs().filter(|cidr| cidr.ready);
        let ranges: BTreeSet<Cidr> = ready.flat_map(|cidr| cidr.cidrs.iter().copied()).collect();
        let ranges: Vec<Cidr> = ranges.into_iter().collect();
        if ranges != self.service_cidrs {
            self.service_cidrs = ranges;
            self.waiting.config = true;
        }
    }

    fn touch(&mut self, touched: Affected) {
        let before = self.routes.place().clone();
        self.routes.refresh(&self.world, &touched);
        if *self.routes.place() != before {
            let place = self.routes.place();
            let zone = place.zone.as_ref().map_or("none", |zone| zone.as_str());
            tracing::info!(zone, "node topology changed");
            self.waiting.all = true;
        }
        self.waiting.services.extend(touched.routes);
    }

    /// Counts a change and records its trigger time.
    fn note(&mut self, change: &Change) {
        match change {
            Change::Put(Object::Service(_)) | Change::Gone(ObjectRef::Service(_)) => {
                self.metrics.service_changed();
            }
            Change::Put(Object::Slice(slice)) => {
                self.metrics.endpoints_changed();
                self.note_slice(slice);
            }
            Change::Gone(ObjectRef::Slice(namespace, name)) => {
                self.metrics.endpoints_changed();
                let Some(slice) = self.world.slice(namespace, name) else { return };
                let (family, service) = (slice.address_type.family(), slice.service());
                if let (Some(family), Some(service)) = (family, service)
                    && let Some(triggers) = self.triggers.get_mut(&family)
                {
                    triggers.gone(&service);
                }
            }
            _ => {}
        }
    }

    fn note_slice(&mut self, slice: &Slice) {
        let known = self.world.slice(&slice.namespace, &slice.name);
        let noted = known.is_some_and(|known| known.trigger_time == slice.trigger_time);
        let triggers = slice.address_type.family().and_then(|f| self.triggers.get_mut(&f));
        if let (Some(triggers), Some(service), false) = (triggers, slice.service(), noted) {
            triggers.changed(service, slice.trigger_time.as_deref());
        }
    }

    /// The `healthCheckNodePort` of a Service and its number of ready local endpoints: distinct
    /// addresses over all ports. None if the Service has no such port.
    pub(crate) fn health_of(&self, key: &ServiceKey) -> Option<(u16, usize)> {
        let service = self.world.service(key)?;
        let asked = service.service_type == ServiceType::LoadBalancer
            && service.external_policy_local()
            && service.health_check_node_port != 0;
        asked.then(|| (service.health_check_node_port, self.local_ready(key)))
    }

    fn local_ready(&self, service: &ServiceKey) -> usize {
        let routes = self.routes.of_service(service);
        let endpoints = routes.flat_map(|(_, route)| route.endpoints.iter());
        let ready = endpoints.filter(|endpoint| endpoint.local && endpoint.ready);
        ready.map(|endpoint| endpoint.key.ip).collect::<BTreeSet<IpAddr>>().len()
    }
}

#[cfg(test)]
mod tests {
    use nearhop_api::decode_object;
    use nearhop_core::Name;
    use nearhop_runtime::metrics::Metrics;

    use super::*;

    fn control(options: Options) -> Control {
        let metrics = ProxyMetrics::new(&Metrics::new(), &options.families);
        Control::new(options, metrics, jiff::Timestamp::UNIX_EPOCH)
    }

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).expect("a valid range")
    }

    /// A ServiceCIDR object of the API.
    fn service_cidr(name: &str, range: &str, ready: &str) -> Changed {
        let object = serde_json::json!({
            "metadata": {"name": name},
            "spec": {"cidrs": [range, "fd00:10:96::/112"]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        decode_object(Kind::ServiceCidr, object.to_string().as_bytes())
    }

    /// The ranges in which addresses without a Service are dropped, and whether a sync is pending.
    fn take(control: &mut Control, changed: Changed) -> (Vec<Cidr>, bool) {
        control.on_feed(vec![FeedEvent::Changed(changed)]);
        (control.config(Family::Ipv4).service_cidrs, control.take_waiting().config)
    }

    #[test]
    fn ready_service_cidrs_set_the_ranges_to_drop() {
        let mut control = control(Options::new("n1"));
        let (first, second) = (cidr("10.96.0.0/16"), cidr("10.112.0.0/16"));
        let kubernetes = || service_cidr("kubernetes", "10.96.0.0/16", "True");
        assert_eq!(take(&mut control, kubernetes()), (vec![first], true));
        assert_eq!(control.config(Family::Ipv6).service_cidrs, [cidr("fd00:10:96::/112")]);
        assert_eq!(
            take(&mut control, kubernetes()),
            (vec![first], false),
            "the object is unchanged"
        );
        let more = |ready| service_cidr("more", "10.112.0.0/16", ready);
        assert_eq!(
            take(&mut control, more("False")),
            (vec![first], false),
            "the ServiceCIDR is not ready"
        );
        assert_eq!(take(&mut control, more("True")), (vec![first, second], true));
        let change = Some(Change::Gone(ObjectRef::ServiceCidr(Name::from("kubernetes"))));
        assert_eq!(take(&mut control, Changed { change, ..kubernetes() }), (vec![second], true));
    }

    #[test]
    fn service_cidrs_are_ignored_with_the_flag_or_another_proxy() {
        let given = cidr("10.64.0.0/16");
        let flag = Options { service_cidrs: vec![given], ..Options::new("n1") };
        let beside = Options { service_proxy_name: Some("nearhop".into()), ..Options::new("n1") };
        for (options, ranges) in [(flag, vec![given]), (beside, Vec::new())] {
            assert!(
                !options.kinds().contains(&Kind::ServiceCidr),
                "the proxy does not watch ServiceCIDRs"
            );
            let mut control = control(options);
            let (dropped, _) =
                take(&mut control, service_cidr("kubernetes", "10.96.0.0/16", "True"));
            assert_eq!(dropped, ranges);
        }
    }
}
