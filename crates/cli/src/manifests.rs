//! `nearhop manifests`: what has to be applied to a cluster before nearhop can run in it.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use nearhop_controller::rbac::{CLUSTER_RULES, LEASE_RULES, Rule};
use serde_json::{Value, json};

/// Prints the manifests that nearhop's rights in a cluster come from, for `kubectl apply -f -`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Namespace that nearhop runs in, and that its Lease is in.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "kube-system")]
    namespace: String,
}

const CONTROLLER: &str = "nearhop-controller";

/// Prints them as one YAML stream.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let documents: Vec<String> =
        manifests(&args.namespace).iter().map(serde_saphyr::to_string).collect::<Result<_, _>>()?;
    let printed = std::io::stdout().write_all(documents.join("---\n").as_bytes());
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn manifests(namespace: &str) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let here = json!({"name": CONTROLLER, "namespace": namespace});
    let everywhere = json!({"name": CONTROLLER});
    let subjects = json!([{"kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace}]);
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": CONTROLLER});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here}),
        json!({
            "apiVersion": rbac, "kind": "ClusterRole", "metadata": everywhere,
            "rules": rules(CLUSTER_RULES),
        }),
        json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": everywhere,
            "roleRef": role("ClusterRole"), "subjects": subjects,
        }),
        json!({
            "apiVersion": rbac, "kind": "Role", "metadata": here, "rules": rules(LEASE_RULES),
        }),
        json!({
            "apiVersion": rbac, "kind": "RoleBinding", "metadata": here,
            "roleRef": role("Role"), "subjects": subjects,
        }),
    ]
}

fn rules(rules: &[Rule]) -> Value {
    let rules = rules.iter().map(|rule| {
        json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.granted()})
    });
    rules.collect()
}
