//! After any creation, change, deletion or rollback, no address or port is allocated twice, and the
//! allocations follow from the stored Services alone.

use std::collections::{BTreeMap, BTreeSet};

use nearhop_kinds::allocate::{Allocator, Refusal};
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_kinds::service;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A cluster whose small ranges run out of addresses and ports.
fn small_cluster() -> ClusterConfig {
    let cidrs = ServiceCidrs::parse("10.0.0.0/28,fd00::/124").expect("the ranges are valid");
    ClusterConfig { node_ports: 30000..=30011, ..ClusterConfig::new(cidrs) }
}

fn big_cluster() -> ClusterConfig {
    let cidrs = ServiceCidrs::parse("10.96.0.0/16,fd00:10:96::/112");
    ClusterConfig::new(cidrs.expect("the ranges are valid"))
}

struct Cluster {
    config: ClusterConfig,
    allocator: Allocator,
    live: BTreeMap<String, Value>,
}

impl Cluster {
    fn new(config: ClusterConfig) -> Self {
        let allocator = Allocator::new(&config);
        Self { config, allocator, live: BTreeMap::new() }
    }

    /// Writes a Service as the server does. `Stored::No` means that the write to the store fails.
    fn write(
        &mut self,
        name: &str,
        spec: Value,
        stored: Stored,
        chance: u64,
    ) -> Result<(), String> {
        let mut new = json!({"metadata": {"name": name}, "spec": spec});
        service::default(&mut new);
        let old = self.live.get(name).cloned();
        let mut random = |below: u64| chance % below;
        let reserved = self
            .allocator
            .allocate(&mut new, old.as_ref(), &mut random)
            .map_err(|refusal| refusal.to_string())?;
        let errors = match &old {
            None => {
                service::prepare_create(&mut new, &self.config);
                service::validate_create(&new, &self.config)
            }
            Some(old) => {
                service::prepare_update(&mut new, old, &self.config);
                service::validate_update(&new, old, &self.config)
            }
        };
        if stored == Stored::No || !errors.is_empty() {
            self.allocator.rollback(reserved);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return Err(texts.join(", "));
        }
        self.allocator.commit(reserved);
        self.live.insert(name.to_owned(), new);
        Ok(())
    }

    fn delete(&mut self, name: &str) {
        if let Some(old) = self.live.remove(name) {
            self.allocator.release(&old);
        }
    }

    fn check(&self) {
        let (mut ips, mut ports) = (BTreeSet::new(), BTreeSet::new());
        let mut rebuilt = Allocator::new(&self.config);
        for service in self.live.values() {
            for ip in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
                assert!(ip == "None" || ips.insert(ip.to_string()), "{ip} twice: {:#?}", self.live);
            }
            // Other types can have a node port in their spec, which has no effect.
            let kind = service["spec"]["type"].as_str();
            if !matches!(kind, Some("NodePort" | "LoadBalancer")) {
                assert_eq!(rebuilt.adopt(service), Vec::<String>::new());
                continue;
            }
            let list = service["spec"]["ports"].as_array().into_iter().flatten();
            let health = service["spec"]["healthCheckNodePort"].as_i64();
            let own: BTreeSet<i64> =
                list.filter_map(|p| p["nodePort"].as_i64()).chain(health).collect();
            for port in own {
                assert!(ports.insert(port), "{port} twice: {:#?}", self.live);
            }
            assert_eq!(rebuilt.adopt(service), Vec::<String>::new());
        }
        assert_eq!(rebuilt, self.allocator, "{:#?}", self.live);
    }

    fn spec(&self, name: &str) -> &Value {
        &self.live[name]["spec"]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    Yes,
    No,
}

#[derive(Clone, Debug)]
enum Step {
    Write { name: String, spec: Value, stored: Stored, chance: u64 },
    Delete(String),
}

fn any_name() -> impl Strategy<Value = String> {
    (0..6u8).prop_map(|i| format!("s{i}"))
}

fn any_spec() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    let policy =
        prop::sample::select(vec!["", "SingleStack", "PreferDualStack", "RequireDualStack"]);
    let ip =
        prop::option::weighted(0.2, prop::sample::select(vec!["10.0.0.3", "10.0.0.4", "None"]));
    let families = prop::sample::select(vec![json!([]), json!(["IPv4"]), json!(["IPv6", "IPv4"])]);
    let port = (1..4u16, prop::bool::ANY, prop::option::weighted(0.3, 30000..30012u16));
    let ports = prop::collection::vec(port, 0..3);
    let switches = (prop::bool::ANY, prop::bool::ANY, prop::option::weighted(0.2, 30000..30012u16));
    (kind, policy, ip, families, ports, switches).prop_map(
        |(kind, policy, ip, families, ports, (local, fill, health))| {
            let port = |(i, (port, udp, node_port)): (usize, (u16, bool, Option<u16>))| {
                let protocol = if udp { "UDP" } else { "TCP" };
                let mut one = json!({"name": format!("p{i}"), "port": port, "protocol": protocol});
                if let Some(node_port) = node_port {
                    one["nodePort"] = json!(node_port);
                }
                one
            };
            let ports: Vec<Value> = ports.into_iter().enumerate().map(port).collect();
            let mut spec = json!({"type": kind, "selector": {"a": "b"}, "ports": ports});
            let mut set = |name: &str, value: Value| spec[name] = value;
            if kind == "ExternalName" {
                set("externalName", json!("a.example.com"));
            } else {
                if !policy.is_empty() {
                    set("ipFamilyPolicy", json!(policy));
                }
                if families != json!([]) {
                    set("ipFamilies", families);
                }
                if let Some(ip) = ip {
                    set("clusterIP", json!(ip));
                }
            }
            if kind == "LoadBalancer" {
                set("allocateLoadBalancerNodePorts", json!(fill));
                if local {
                    set("externalTrafficPolicy", json!("Local"));
                    if let Some(health) = health {
                        set("healthCheckNodePort", json!(health));
                    }
                }
            }
            spec
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let stored = prop::sample::select(vec![Stored::Yes, Stored::Yes, Stored::Yes, Stored::No]);
    let write = (any_name(), any_spec(), stored, any::<u64>())
        .prop_map(|(name, spec, stored, chance)| Step::Write { name, spec, stored, chance });
    prop_oneof![5 => write, 1 => any_name().prop_map(Step::Delete)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_address_or_port_is_allocated_twice(steps in prop::collection::vec(any_step(), 1..40)) {
        let mut cluster = Cluster::new(small_cluster());
        for step in steps {
            match step {
                Step::Write { name, spec, stored, chance } => {
                    let _ = cluster.write(&name, spec, stored, chance);
                }
                Step::Delete(name) => cluster.delete(&name),
            }
            cluster.check();
        }
    }
}

#[test]
fn a_service_can_change_to_dual_stack_and_back() {
    let mut cluster = Cluster::new(big_cluster());
    let spec = |policy: &str| json!({"ipFamilyPolicy": policy, "ports": [{"port": 80}]});
    cluster.write("a", spec("SingleStack"), Stored::Yes, 7).unwrap();
    let first = cluster.spec("a")["clusterIP"].clone();
    cluster.write("a", spec("RequireDualStack"), Stored::Yes, 7).unwrap();
    assert_eq!(cluster.spec("a")["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(cluster.spec("a")["clusterIPs"][0], first);
    cluster.check();
    cluster.write("a", spec("SingleStack"), Stored::Yes, 7).unwrap();
    assert_eq!(cluster.spec("a")["clusterIPs"], json!([first]));
    cluster.check();
    let mut fewer = spec("PreferDualStack");
    cluster.write("a", fewer.clone(), Stored::Yes, 7).unwrap();
    fewer["clusterIPs"] = json!([first]);
    assert_eq!(
        cluster.write("a", fewer, Stored::Yes, 7).unwrap_err(),
        "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release \
         the secondary cluster IP"
    );
    cluster.check();
}

#[test]
fn every_node_port_has_one_owner() {
    let mut cluster = Cluster::new(big_cluster());
    let dns = json!({"type": "NodePort", "ports": [
        {"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]});
    cluster.write("dns", dns, Stored::Yes, 0).unwrap();
    let ports = &cluster.spec("dns")["ports"];
    assert_eq!(ports[0]["nodePort"], 30086);
    assert_eq!(ports[1]["nodePort"], 30086, "both protocols of a port have the same node port");
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30086}]});
    assert_eq!(
        cluster.write("b", taken, Stored::Yes, 0).unwrap_err(),
        "spec.ports[0].nodePort: Invalid value: 30086: provided port is already allocated"
    );
    let health = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 30086, "ports": [{"port": 80}]});
    assert_eq!(
        cluster.write("c", health, Stored::Yes, 1).unwrap_err(),
        "failed to allocate requested HealthCheck NodePort 30086: provided port is already allocated"
    );
    cluster.check();
}

#[test]
fn omitted_allocations_are_kept() {
    let mut cluster = Cluster::new(big_cluster());
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]});
    cluster.write("a", spec.clone(), Stored::Yes, 3).unwrap();
    let before = cluster.spec("a").clone();
    assert!(before["healthCheckNodePort"].is_number());
    cluster.write("a", spec, Stored::Yes, 99).unwrap();
    assert_eq!(cluster.spec("a"), &before);
    let plain = json!({"ports": [{"name": "a", "port": 80}]});
    cluster.write("a", plain, Stored::Yes, 99).unwrap();
    let after = cluster.spec("a");
    assert_eq!(after["clusterIP"], before["clusterIP"]);
    for gone in ["healthCheckNodePort", "externalTrafficPolicy", "allocateLoadBalancerNodePorts"] {
        assert_eq!(after.get(gone), None, "{gone}");
    }
    assert_eq!(after["ports"][0].get("nodePort"), None);
    cluster.check();
}

#[test]
fn a_full_range_is_an_error() {
    let mut cluster = Cluster::new(small_cluster());
    for i in 0..14 {
        cluster
            .write(&format!("s{i}"), json!({"ports": [{"port": 80}]}), Stored::Yes, i * 5)
            .unwrap();
    }
    let mut new = json!({"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}});
    service::default(&mut new);
    let refusal = cluster.allocator.allocate(&mut new, None, &mut |_| 0).unwrap_err();
    let text = r#"failed to allocate a serviceIP for Service "x": range is full"#;
    assert_eq!(refusal, Refusal::Internal(text.to_owned()));
    cluster.delete("s3");
    cluster.write("y", json!({"ports": [{"port": 80}]}), Stored::Yes, 1).unwrap();
    cluster.check();
}

#[test]
fn a_dry_run_checks_only_the_range() {
    let config = big_cluster();
    let allocator = Allocator::new(&config);
    let mut new = json!({"metadata": {"name": "x"}, "spec": {"clusterIP": "192.0.2.1",
        "ports": [{"port": 80}]}});
    service::default(&mut new);
    assert_eq!(
        allocator.dry_run(&mut new, None).unwrap_err().to_string(),
        "spec.clusterIPs: Invalid value: [\"192.0.2.1\"]: failed to allocate IP 192.0.2.1: the \
         provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"
    );
}
