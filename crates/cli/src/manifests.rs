//! `nearhop manifests`: the objects that nearhop needs in a cluster.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use nearhop_api::rbac::Rule;
use nearhop_controller::rbac::{CLUSTER_RULES, LEASE_RULES};
use serde_json::{Value, json};

use crate::output::print;

/// Prints the manifests that nearhop needs in a cluster: the CRD PodLocator, ServiceAccounts and
/// RBAC rules.
///
/// For cluster administrators, once per cluster: nearhop manifests | kubectl apply -f -
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Namespace of nearhop's ServiceAccounts and of its Lease.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "kube-system")]
    namespace: String,
}

const CONTROLLER: &str = "nearhop-controller";
const PROXY: &str = "nearhop-proxy";
const DNS: &str = "nearhop-dns";

/// Prints the manifests as one YAML stream.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let documents: Vec<String> =
        manifests(&args.namespace).iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
    print(&documents.join("---\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn manifests(namespace: &str) -> Vec<Value> {
    let mut manifests = vec![nearhop_api::locator::definition()];
    manifests.extend(cluster_rights(CONTROLLER, namespace, CLUSTER_RULES));
    let metadata = json!({"name": CONTROLLER, "namespace": namespace});
    manifests.push(json!({
        "apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules(LEASE_RULES),
    }));
    manifests.push(json!({
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": role("Role", CONTROLLER), "subjects": subjects(CONTROLLER, namespace),
    }));
    manifests.extend(cluster_rights(PROXY, namespace, nearhop_proxy::rbac::CLUSTER_RULES));
    manifests.extend(cluster_rights(DNS, namespace, nearhop_dns::rbac::CLUSTER_RULES));
    manifests
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// A ServiceAccount with a ClusterRole and its binding.
fn cluster_rights(name: &str, namespace: &str, granted: &[Rule]) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace},
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name},
            "rules": rules(granted),
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": role("ClusterRole", name), "subjects": subjects(name, namespace),
        }),
    ]
}

fn role(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}

fn subjects(name: &str, namespace: &str) -> Value {
    json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}])
}

fn rules(rules: &[Rule]) -> Value {
    let rules = rules.iter().map(|rule| {
        json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.granted()})
    });
    rules.collect()
}
