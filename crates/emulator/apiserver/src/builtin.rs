//! The built-in resources that the server itself reads and writes. Each is found once.

use std::sync::{Arc, LazyLock};

use nearhop_kinds::Resource;

pub(crate) type Builtin = LazyLock<Arc<Resource>>;

pub(crate) static BUDGETS: Builtin = LazyLock::new(|| find("policy", "poddisruptionbudgets"));
pub(crate) static DEFINITIONS: Builtin =
    LazyLock::new(|| find("apiextensions.k8s.io", "customresourcedefinitions"));
pub(crate) static ENDPOINTS: Builtin = LazyLock::new(|| find("", "endpoints"));
pub(crate) static ENDPOINT_SLICES: Builtin =
    LazyLock::new(|| find("discovery.k8s.io", "endpointslices"));
pub(crate) static EVENTS: Builtin = LazyLock::new(|| find("", "events"));
pub(crate) static NAMESPACES: Builtin = LazyLock::new(|| find("", "namespaces"));
pub(crate) static NODES: Builtin = LazyLock::new(|| find("", "nodes"));
pub(crate) static PODS: Builtin = LazyLock::new(|| find("", "pods"));
pub(crate) static SECRETS: Builtin = LazyLock::new(|| find("", "secrets"));
pub(crate) static SERVICE_ACCOUNTS: Builtin = LazyLock::new(|| find("", "serviceaccounts"));
pub(crate) static SERVICES: Builtin = LazyLock::new(|| find("", "services"));

fn find(group: &str, plural: &str) -> Arc<Resource> {
    let found = nearhop_kinds::builtin::registry().find(group, "v1", plural);
    Arc::clone(found.expect("the resource is built in"))
}
