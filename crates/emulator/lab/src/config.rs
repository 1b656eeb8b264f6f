//! The file of `--config`: a text in core's fixture language, and where its objects are, so that every
//! error names the file, the line and the column. A value without effects.
//!
//! A lab assigns addresses, makes every node ready and runs every Pod. What contradicts that is an
//! error; what it makes unnecessary is reported by [`ConfigFile::ignored`].

use std::collections::BTreeMap;

use nearhop_core::fixture::{Fixture, FixtureError, Places};
use nearhop_core::intent::{IntentContext, decide_intent};
use nearhop_core::labels::well_known;
use nearhop_core::model::{ClusterIps, Node, Pod, Service, is_zone_name};
use nearhop_core::routing::is_label_key;
use nearhop_core::{Gates, Name, ServiceKey};
use serde_json::Value;

use crate::ranges::Ranges;
use crate::topology::{MAX_NODES, RACK, Topology, is_host_name};
use crate::{LabError, objects};

/// How many Pods a node can run, as for a kubelet.
const PODS_PER_NODE: usize = 110;

/// A parsed file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    name: String,
    fixture: Fixture,
    places: Places,
}

impl ConfigFile {
    /// Parses a text; `name` is the file's, for errors.
    pub fn parse(name: &str, text: &str) -> Result<Self, LabError> {
        let (fixture, places) = Fixture::parse_with_places(text).map_err(|error| {
            let FixtureError { line, column, fault } = error;
            LabError::Config { place: format!("{name}:{line}:{column}"), why: fault.to_string() }
        })?;
        Ok(Self { name: name.to_owned(), fixture, places })
    }

    /// The described cluster.
    pub fn fixture(&self) -> &Fixture {
        &self.fixture
    }

    /// The first Service that routes differently with the distribution `PreferSameZone`.
    pub fn service_to_patch(&self, gates: &Gates) -> Option<&ServiceKey> {
        let changes = |service: &&Service| {
            let of = |service: &Service| {
                let namespace = &service.key.namespace;
                let namespace = self.fixture.namespaces.iter().find(|one| one.name == *namespace);
                decide_intent(service, IntentContext { gates, namespace, cluster_default: None })
                    .intent
            };
            let mut patched = (*service).clone();
            patched.topology.traffic_distribution = Some(Name::from("PreferSameZone"));
            of(service) != of(&patched)
        };
        self.fixture.services.iter().find(changes).map(|service| &service.key)
    }

    /// The nodes of the file, with addresses that the lab assigns.
    pub fn topology(&self, ranges: Ranges) -> Result<Topology, LabError> {
        self.check_count()?;
        for node in &self.fixture.nodes {
            self.check_node(node)?;
            self.check_labels(node)?;
        }
        for pod in &self.fixture.pods {
            self.check_node_of(pod)?;
        }
        self.check_room()?;
        Topology::of_nodes(&self.fixture.nodes, ranges)
    }

    /// The namespaces, Services and Pods as API objects, in an order in which they can be created.
    pub fn objects(&self) -> Result<Vec<Value>, LabError> {
        for pod in &self.fixture.pods {
            let option = [(pod.deleting, "terminating"), (pod.terminal, "failed")];
            if let Some((_, option)) = option.into_iter().find(|(is_set, _)| *is_set) {
                let why = format!(
                    "{option} is not supported in a lab, which runs every Pod. Cure: leave it out, \
                     and delete the Pod in the running lab"
                );
                return Err(self.error(&of_pod(pod), Some(option), &why));
            }
        }
        Ok(objects::of_fixture(&self.fixture))
    }

    /// What the file says and a lab decides itself.
    pub fn ignored(&self) -> Vec<String> {
        let services = self.fixture.services.iter().flat_map(|service| {
            let of = |option| (of_service(service), option);
            ignored_options(service).into_iter().map(of)
        });
        let pods = self.fixture.pods.iter().filter(|pod| !pod.ips.as_slice().is_empty());
        let pods = pods.map(|pod| (of_pod(pod), "ip"));
        let uids = self.fixture.pods.iter().map(|pod| (of_pod(pod), "uid"));
        let all = services.chain(pods).chain(uids);
        // Addresses and UIDs are in the fixture whether the text has them or not.
        let written = all.filter(|(object, option)| {
            let find = |option| self.places.find(object, option);
            find(Some(option)) != find(None)
        });
        let say = |(object, option): (String, &str)| {
            let place = self.place(&object, Some(option));
            format!("{place}: {object}: {option} is ignored: the lab decides it")
        };
        written.map(say).collect()
    }

    /// A warning of the API server about an object, at its line.
    pub(crate) fn warning_about(&self, object: &Value, text: &str) -> String {
        self.error_about(object, text).to_string()
    }

    /// An error about an object, at its line. The text is the API server's or the lab's.
    pub fn error_about(&self, object: &Value, why: &str) -> LabError {
        let text = |field: &str| object["metadata"][field].as_str();
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        let name = text("name").unwrap_or_default();
        let object = match text("namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        };
        self.error(&object, None, why)
    }

    fn place(&self, object: &str, option: Option<&str>) -> String {
        match self.places.find(object, option) {
            Some((line, column)) => format!("{}:{line}:{column}", self.name),
            None => self.name.clone(),
        }
    }

    fn error(&self, object: &str, option: Option<&str>, why: &str) -> LabError {
        LabError::Config { place: self.place(object, option), why: format!("{object}: {why}") }
    }

    /// Refuses no nodes, and more than one machine can run.
    fn check_count(&self) -> Result<(), LabError> {
        let nodes = &self.fixture.nodes;
        if nodes.is_empty() {
            let why = "a lab needs at least one node. Cure: a line such as `node n1 zone=a`";
            return Err(LabError::Config { place: format!("{}:1:1", self.name), why: why.into() });
        }
        match nodes.get(MAX_NODES) {
            Some(node) => {
                let all = nodes.len();
                let why = format!("{all} nodes are too many for a lab. Cure: at most {MAX_NODES}");
                Err(self.error(&format!("node {}", node.name), None, &why))
            }
            None => Ok(()),
        }
    }

    /// Refuses labels that the API server refuses: the agent could never register the node.
    fn check_labels(&self, node: &Node) -> Result<(), LabError> {
        let object = format!("node {}", node.name);
        for (key, value) in node.labels.iter() {
            let (key, value) = (key.as_str(), value.as_str());
            let why = if !is_label_key(key) {
                format!(
                    "`{key}` is not a label key. Cure: up to 63 letters, digits, `-`, `_` and `.` \
                     with a letter or digit at both ends, after an optional DNS name and `/`"
                )
            } else if !value.is_empty() && !is_zone_name(value) {
                format!(
                    "`{value}` is not a label value. Cure: up to 63 letters, digits, `-`, `_` and \
                     `.`, with a letter or digit at both ends"
                )
            } else {
                continue;
            };
            return Err(self.error(&object, Some(&self.option_of_label(&object, key)), &why));
        }
        Ok(())
    }

    /// The option that sets a label: a word of its own, or `label:KEY`.
    fn option_of_label(&self, object: &str, key: &str) -> String {
        let short = match key {
            well_known::ZONE => "zone",
            well_known::REGION => "region",
            RACK => RACK,
            _ => "",
        };
        let find = |option| self.places.find(object, option);
        if find(Some(short)) == find(None) { format!("label:{key}") } else { short.to_owned() }
    }

    /// Refuses Pods that no node has room for: they would wait forever.
    fn check_room(&self) -> Result<(), LabError> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let room = self.fixture.nodes.len() * PODS_PER_NODE;
        for (n, pod) in self.fixture.pods.iter().enumerate() {
            let node = pod.node.as_ref().map(Name::as_str).filter(|node| !node.is_empty());
            let count = node.map_or(0, |node| {
                let count = counts.entry(node).or_default();
                *count += 1;
                *count
            });
            let why = match node {
                Some(node) if count > PODS_PER_NODE => format!("node {node} has too many Pods"),
                _ if n >= room => "the nodes have no room for so many Pods".to_owned(),
                _ => continue,
            };
            let cure = format!("Cure: at most {PODS_PER_NODE} Pods for each node");
            return Err(self.error(&of_pod(pod), None, &format!("{why}. {cure}")));
        }
        Ok(())
    }

    fn check_node(&self, node: &Node) -> Result<(), LabError> {
        let object = format!("node {}", node.name);
        if !is_host_name(&node.name) {
            let why = "the name of a node has up to 63 lower case letters, digits, `-` and `.`, and \
                       a letter or digit at both ends and beside each `.`. Cure: another name";
            return Err(self.error(&object, None, why));
        }
        let assigned = "the lab assigns addresses";
        let faults = "`nearhop lab fault` makes nodes fail";
        let options = [
            (!node.addresses.is_empty(), "address", assigned),
            (!node.pod_cidrs.is_empty(), "pod-cidr", assigned),
            (!node.ready, "notready", faults),
            (node.deleting, "deleting", faults),
            (node.tainted_for_deletion, "tainted-for-deletion", faults),
        ];
        match options.into_iter().find(|(is_set, ..)| *is_set) {
            Some((_, option, instead)) => {
                let why =
                    format!("{option} is not supported in a lab. Cure: leave it out; {instead}");
                Err(self.error(&object, Some(option), &why))
            }
            None => Ok(()),
        }
    }

    /// Refuses Pods on nodes that do not exist: they would wait forever.
    fn check_node_of(&self, pod: &Pod) -> Result<(), LabError> {
        let there = |name: &Name| self.fixture.nodes.iter().any(|node| node.name == *name);
        match pod.node.as_ref().filter(|node| !there(node)) {
            Some(node) => {
                let why = format!("there is no node `{node}`. Cure: a line `node {node}`");
                Err(self.error(&of_pod(pod), Some("on"), &why))
            }
            None => Ok(()),
        }
    }
}

fn of_service(service: &Service) -> String {
    format!("service {}/{}", service.key.namespace, service.key.name)
}

fn of_pod(pod: &Pod) -> String {
    format!("pod {}/{}", pod.key.namespace, pod.key.name)
}

/// The text of a file; an error names the place of the first byte that is not UTF-8.
pub fn text_of(name: &str, bytes: Vec<u8>) -> Result<String, LabError> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let why = "this byte is not UTF-8. Cure: save the file as UTF-8".to_owned();
        LabError::Config { place: format!("{name}:{line}:{column}"), why }
    })
}

/// Options of a Service that a cluster sets, not its user.
fn ignored_options(service: &Service) -> Vec<&'static str> {
    let options = [
        (matches!(service.cluster_ips, ClusterIps::Addresses(_)), "cluster-ip"),
        (matches!(service.cluster_ips, ClusterIps::Unset), "cluster-ip"),
        (true, "families"),
        (!service.load_balancer_ips.is_empty(), "lb-ip"),
        (service.health_check_node_port != 0, "health-port"),
        (service.deleting, "deleting"),
        (true, "uid"),
    ];
    options.into_iter().filter(|(is_set, _)| *is_set).map(|(_, option)| option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ConfigFile {
        ConfigFile::parse("big.lab", text).expect("the text is valid")
    }

    #[test]
    fn unsupported_options_are_refused_at_their_place() {
        for (text, wanted) in [
            ("node n1 address=10.0.0.1\n", "big.lab:1:9: node n1: address is not supported"),
            ("\n  node n1 zone=a pod-cidr=10.0.0.0/24\n", "big.lab:2:18: node n1: pod-cidr is"),
            ("node n1 notready\n", "big.lab:1:9: node n1: notready is not supported in a lab"),
            ("nodes n x2 deleting\n", "big.lab:1:12: node n-0: deleting is not supported"),
            ("node Big_Node\n", "big.lab:1:6: node Big_Node: the name of a node has up to 63"),
            ("node a..b\n", "big.lab:1:6: node a..b: the name of a node has up to 63"),
            ("# none\n", "big.lab:1:1: a lab needs at least one node"),
            ("nodes n x200\nnode m\n", "big.lab:2:6: node m: 201 nodes are too many for a lab"),
            ("node n1 rack=\"row 7\"\n", "big.lab:1:9: node n1: `row 7` is not a label value"),
            ("node n1 cpu=4 zone=\u{e4}\n", "big.lab:1:15: node n1: `\u{e4}` is not a label value"),
            ("nodes n x2 region=-x\n", "big.lab:1:12: node n-0: `-x` is not a label value"),
            ("node n1 label:a=b label:A/b=c\n", "big.lab:1:19: node n1: `A/b` is not a label key"),
            ("node n1 label:rack=a!\n", "big.lab:1:9: node n1: `a!` is not a label value"),
            (
                "node n1\npods p x99999 for=s on=n1\n",
                "big.lab:2:6: pod default/p-110: node n1 has too many Pods",
            ),
            (
                "nodes n x2\npods p x220 for=s on=\"\"\npod q for=s on=n-0\n",
                "big.lab:3:5: pod default/q: the nodes have no room",
            ),
            ("node n1\npod p for=s on=n2\n", "big.lab:2:13: pod default/p: there is no node `n2`"),
            ("node n1\npod p for=s on=n1 failed\n", "big.lab:2:19: pod default/p: failed is not"),
        ] {
            let file = parse(text);
            let built = file.topology(Ranges::default()).and_then(|_| file.objects());
            let said = built.expect_err(text).to_string();
            assert!(said.starts_with(wanted) && said.contains("Cure"), "{text}: {said}");
        }
        let said = ConfigFile::parse("x", "node n colour=red").expect_err("no such option");
        assert!(said.to_string().starts_with("x:1:8: node has no option"), "{said}");
    }

    #[test]
    fn bytes_that_are_not_utf_8_have_a_place() {
        let said = text_of("x", b"node n1\nnode \xc3\xa4\xff".to_vec()).expect_err("not UTF-8");
        assert!(said.to_string().starts_with("x:2:7: this byte is not UTF-8"), "{said}");
    }

    #[test]
    fn only_a_service_that_the_patch_changes_is_suggested() {
        let file = parse(
            "node n1\nservice same traffic-distribution=PreferSameZone\n\
             service keys topology-keys=rack,*\n",
        );
        assert_eq!(file.service_to_patch(&Gates::default()), None);
        let file = parse("node n1\nservice keys topology-keys=rack,*\nservice shop/plain\n");
        let found = file.service_to_patch(&Gates::default()).map(ToString::to_string);
        assert_eq!(found.as_deref(), Some("shop/plain"));
    }

    const PAGE: &str = include_str!("../../../../docs/lab-config.md");

    #[test]
    fn the_page_names_every_keyword() {
        for (kind, options) in nearhop_core::fixture::keywords() {
            let line = PAGE.lines().find(|line| line.starts_with(&format!("| `{kind} ")));
            assert!(line.is_some(), "{kind}");
            // `nodes` is described with `node`.
            let section = format!("\n## `{}`", kind.strip_suffix('s').unwrap_or(kind));
            let section = PAGE.split(&section).nth(1).expect(kind);
            let section = section.split("\n## ").next().expect("split yields a part");
            for option in options {
                assert!(section.contains(&format!("`{option}`")), "{kind}: {option}");
            }
        }
    }

    #[test]
    fn the_examples_of_the_page_are_valid() {
        let examples: Vec<&str> = PAGE.split("```lab\n").skip(1).collect();
        assert!(examples.len() > 2, "the page has examples");
        for example in examples {
            let text = example.split("```").next().expect("split yields a part");
            let file = parse(text);
            file.topology(Ranges::default()).expect(text);
            file.objects().expect(text);
            assert!(file.ignored().is_empty(), "{text}");
        }
    }

    #[test]
    fn values_that_a_lab_assigns_are_named() {
        let file = parse(
            "node n1\nservice web cluster-ip=10.96.0.9 uid=u\nservice db cluster-ip=None\n\
             pod web-0 for=web on=n1 ip=10.1.0.1\npod web-1 for=web on=n1\n",
        );
        let said = file.ignored();
        let wanted = [
            "big.lab:2:13: service default/web: cluster-ip is ignored: the lab decides it",
            "big.lab:2:34: service default/web: uid is ignored: the lab decides it",
            "big.lab:4:25: pod default/web-0: ip is ignored: the lab decides it",
        ];
        assert_eq!(said, wanted);
    }
}
