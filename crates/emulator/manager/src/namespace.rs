//! The default objects of a namespace: the ServiceAccount `default` and the ConfigMap with the
//! cluster CA. Pure.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::action::{Action, Plan};
use crate::kind::Kind;
use crate::object;

/// The ServiceAccount of Pods that name none.
pub(crate) const ACCOUNT: &str = "default";
/// The ConfigMap with the cluster CA.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
const FILE: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using \
                    internal endpoints such as the internal service IP or \
                    kubernetes.default.svc. No other usage is guaranteed across distributions of \
                    Kubernetes clusters.";

/// The state of the default ServiceAccount.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Account<'a> {
    /// The ServiceAccount controller is disabled.
    Ignored,
    Managed(Option<&'a ServiceAccount>),
}

/// Plans the default objects of a namespace. `authority` is the CA to publish, with the existing
/// ConfigMap.
#[must_use]
pub(crate) fn plan_namespace(
    namespace: &Namespace,
    account: Account<'_>,
    authority: Option<(&str, Option<&ConfigMap>)>,
) -> Plan {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    if object::is_deleting(&namespace.metadata) || phase == Some("Terminating") {
        return Plan::default();
    }
    let within = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.metadata.name.clone(),
        ..ObjectMeta::default()
    };
    let mut actions = Vec::new();
    if let Account::Managed(None) = account {
        let made = ServiceAccount { metadata: within(ACCOUNT), ..ServiceAccount::default() };
        actions.push(Action::Create(made.into()));
    }
    if let Some((pem, found)) = authority {
        actions.extend(publish(pem, found, within(ROOT_CA)));
    }
    let mut plan = Plan::default();
    plan.then(actions);
    plan
}

fn publish(pem: &str, found: Option<&ConfigMap>, mut metadata: ObjectMeta) -> Option<Action> {
    let data = [(FILE.to_owned(), pem.to_owned())].into();
    let Some(found) = found else {
        metadata.annotations = Some([(DESCRIPTION.to_owned(), TEXT.to_owned())].into());
        let made = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        return Some(Action::Create(made.into()));
    };
    if found.data.as_ref() == Some(&data) {
        return None;
    }
    let mut body = json!({ "data": { FILE: pem } });
    for key in found.data.iter().flatten().map(|(key, _)| key).filter(|key| *key != FILE) {
        body["data"][key] = serde_json::Value::Null;
    }
    Some(Action::patch(Kind::ConfigMap, &found.metadata, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, at};

    fn namespace() -> Namespace {
        let metadata = ObjectMeta { name: Some("x".to_owned()), ..ObjectMeta::default() };
        Namespace { metadata, ..Namespace::default() }
    }

    #[test]
    fn missing_objects_are_created_and_changed_ones_repaired() {
        let plan = plan_namespace(&namespace(), Account::Managed(None), Some(("PEM", None)));
        assert_eq!(plan.actions().count(), 2);
        let account = ServiceAccount::default();
        let account = Account::Managed(Some(&account));
        let mut map = ConfigMap { metadata: testing::meta(ROOT_CA), ..ConfigMap::default() };
        map.data = Some([("ca.crt".to_owned(), "PEM".to_owned())].into());
        let plan = plan_namespace(&namespace(), account, Some(("PEM", Some(&map))));
        assert_eq!(plan, Plan::default());
        map.data.as_mut().unwrap().insert("extra".to_owned(), "?".to_owned());
        let plan = plan_namespace(&namespace(), account, Some(("PEM", Some(&map))));
        let Some(Action::Patch(_, _, body)) = plan.actions().next() else { panic!("{plan:?}") };
        assert_eq!(body["data"], json!({ "ca.crt": "PEM", "extra": null }));
    }

    #[test]
    fn a_terminating_namespace_gets_no_objects() {
        let mut ending = namespace();
        ending.metadata.deletion_timestamp = Some(object::time(at(0)));
        assert_eq!(plan_namespace(&ending, Account::Managed(None), None), Plan::default());
    }
}
