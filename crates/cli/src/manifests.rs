//! `nearhop manifests`: the objects that nearhop needs in a cluster.

use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use nearhop_api::rbac::Rule;
use nearhop_controller::rbac::{CLUSTER_RULES, LEASE_RULES};
use serde_json::{Value, json};

use crate::output::{print, print_json};
use crate::parse::parse_namespace;

/// Prints the objects that nearhop needs in a cluster: ServiceAccounts, RBAC rules and the CRD
/// PodLocator.
///
/// For cluster administrators, once per cluster. Apply them with kubectl.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop manifests | kubectl apply -f -
  nearhop manifests --namespace nearhop | kubectl diff -f -
  nearhop manifests -o json")]
pub(crate) struct Args {
    /// Namespace of nearhop's ServiceAccounts and of its Lease.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "kube-system", value_parser = parse_namespace)]
    namespace: String,

    /// Output format: text, which is a stream of YAML documents, or json, which is one List.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    output: Format,
}

/// `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    #[value(aliases = ["table", "yaml"])]
    Text,
    Json,
}

const CONTROLLER: &str = "nearhop-controller";
const PROXY: &str = "nearhop-proxy";
const DNS: &str = "nearhop-dns";

/// Prints the manifests.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let manifests = manifests(&args.namespace);
    match args.output {
        Format::Text => {
            let documents: Vec<String> =
                manifests.iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
            print(&documents.join("---\n"))?;
        }
        Format::Json => {
            print_json(&json!({"apiVersion": "v1", "kind": "List", "items": manifests}))?;
        }
    }
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
