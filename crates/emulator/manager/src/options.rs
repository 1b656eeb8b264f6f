//! Which controllers run, and the node grace periods.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nearhop_runtime::health::Health;

/// Configuration of the manager.
#[derive(Clone, Debug)]
pub struct Options {
    /// The enabled controllers.
    pub controllers: Controllers,
    /// How long a node may miss heartbeats before its Ready condition becomes Unknown.
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has not reported yet.
    pub node_startup_grace_period: Duration,
    /// The cluster CA for the ConfigMap `kube-root-ca.crt`, as PEM; without it no ConfigMap is
    /// published.
    pub root_ca: Option<String>,
    /// Where the loop reports that it is alive.
    pub health: Health,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controllers: Controllers::default(),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            root_ca: None,
            health: Health::new(),
        }
    }
}

/// A controller that can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Rolls out Deployments.
    Deployment,
    /// Keeps the number of Pods of ReplicaSets.
    ReplicaSet,
    /// Runs one Pod on each matching node for DaemonSets.
    DaemonSet,
    /// Binds Pods to nodes.
    Scheduler,
    /// Sets conditions and taints of nodes by their Leases.
    NodeLifecycle,
    /// Deletes pods that do not tolerate a NoExecute taint.
    TaintEviction,
    /// Deletes Pods of missing nodes.
    PodGc,
    /// Creates the ServiceAccount `default` in each namespace.
    ServiceAccount,
    /// Publishes the ConfigMap `kube-root-ca.crt` in each namespace.
    RootCa,
}

/// Each controller with its names in kube-controller-manager.
const NAMES: [(Controller, &[&str]); 9] = [
    (Controller::Deployment, &["deployment-controller", "deployment"]),
    (Controller::ReplicaSet, &["replicaset-controller", "replicaset"]),
    (Controller::DaemonSet, &["daemonset-controller", "daemonset"]),
    (Controller::Scheduler, &["scheduler", "kube-scheduler"]),
    (Controller::NodeLifecycle, &["node-lifecycle-controller", "nodelifecycle"]),
    (Controller::TaintEviction, &["taint-eviction-controller"]),
    (Controller::PodGc, &["pod-garbage-collector-controller", "podgc"]),
    (Controller::ServiceAccount, &["serviceaccount-controller", "serviceaccount"]),
    (Controller::RootCa, &["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"]),
];

/// The enabled controllers in kube-controller-manager's syntax: `*` for all, `name` to enable,
/// `-name` to disable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers(BTreeSet<Controller>);

impl Default for Controllers {
    fn default() -> Self {
        Self(NAMES.iter().map(|(controller, _)| *controller).collect())
    }
}

impl Controllers {
    /// Whether the controller is enabled.
    #[must_use]
    pub fn has(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }
}

/// The name of no controller.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {name:?}; known controllers: {known}", known = known())]
pub struct UnknownController {
    name: String,
}

fn known() -> String {
    let names: Vec<&str> = NAMES.iter().map(|(_, names)| names[0]).collect();
    names.join(", ")
}

impl FromStr for Controllers {
    type Err = UnknownController;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut on, mut off, mut all) = (BTreeSet::new(), BTreeSet::new(), false);
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.strip_prefix('-') {
                Some(name) => off.insert(find(name)?),
                None if item == "*" => {
                    all = true;
                    true
                }
                None => on.insert(find(item)?),
            };
        }
        if all {
            on = Self::default().0;
        }
        Ok(Self(on.difference(&off).copied().collect()))
    }
}

fn find(name: &str) -> Result<Controller, UnknownController> {
    let found = NAMES.iter().find(|(_, names)| names.contains(&name));
    found.map(|(found, _)| *found).ok_or_else(|| UnknownController { name: name.to_owned() })
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = NAMES.iter().filter(|(controller, _)| self.has(*controller));
        let names: Vec<&str> = on.map(|(_, names)| names[0]).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_parse_in_kube_controller_managers_syntax() {
        let all: Controllers = "*".parse().unwrap();
        assert_eq!(all, Controllers::default());
        let some: Controllers = "*,-deployment, -nodelifecycle".parse().unwrap();
        assert!(!some.has(Controller::Deployment) && !some.has(Controller::NodeLifecycle));
        assert!(some.has(Controller::ReplicaSet) && some.has(Controller::Scheduler));
        let two: Controllers = "scheduler,podgc".parse().unwrap();
        assert_eq!(two.to_string(), "scheduler,pod-garbage-collector-controller");
        let none: Controllers = "-scheduler".parse().unwrap();
        assert_eq!(none.to_string(), "", "without * only named controllers run");
        let error = "*,-bogus".parse::<Controllers>().unwrap_err().to_string();
        assert!(error.contains("bogus") && error.contains("deployment-controller"), "{error}");
    }
}
