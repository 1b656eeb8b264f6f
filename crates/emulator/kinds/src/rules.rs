//! How the kinds differ in what writes do, as one table: who may create by update, who must name a
//! resourceVersion, what a delete answers, when the generation moves, and what a writer of a part
//! may not touch.
//!
//! Deliberately not here: what a kind's fields mean (its own module), and the verbs it has (the
//! registry).

use crate::metadata::{FinalizerRule, MetaRule, NameRule};
use crate::resource::Resource;

/// What holds for the writes of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A PUT to a name that does not exist creates it.
    pub create_on_update: bool,
    /// A PUT without a resourceVersion overwrites whatever is there.
    pub unconditional_update: bool,
    /// What a DELETE that removes the object answers.
    pub delete_answers: DeleteAnswers,
    /// A DELETE may leave the object for a grace period (Pod).
    pub graceful: bool,
    /// When `metadata.generation` moves.
    pub generation: Generation,
    /// Its names and finalizers.
    pub meta: MetaRule,
    /// Which checks of the metadata the kind repeats on an update. Clients see each complaint as
    /// often as it is found.
    pub repeat: Repeat,
    /// What a `/status` write leaves alone.
    pub status: StatusWrite,
}

/// What a DELETE answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteAnswers {
    /// The object as it was last.
    Object,
    /// `Status` with the object's uid.
    Status,
}

/// When `metadata.generation` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// When this part changes.
    Part(&'static str),
    /// When the spec or the annotations change.
    SpecAndAnnotations,
    /// When anything but metadata and status changes; its own module counts.
    Content,
    /// When anything but metadata changes, or the labels; its own module counts.
    ContentAndLabels,
}

/// Which checks of the metadata a kind repeats on an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// None.
    Nothing,
    /// What may not change.
    Update,
    /// Form.
    Form,
    /// Both.
    Both,
}

/// What a `/status` write leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// The spec.
    KeepsSpec,
    /// The spec and the labels (Deployment).
    KeepsSpecAndLabels,
    /// The spec and the owners (Pod).
    KeepsSpecAndOwners,
    /// Everything but the status.
    KeepsAll,
}

const SUBDOMAIN: MetaRule =
    MetaRule { name: NameRule::Subdomain, finalizers: FinalizerRule::Standard };
const LABEL: MetaRule = MetaRule { name: NameRule::Label, ..SUBDOMAIN };
const SEGMENT: MetaRule = MetaRule { name: NameRule::PathSegment, ..SUBDOMAIN };
const SPEC: Generation = Generation::Part("spec");

/// What most kinds are like; rows name the differences.
const PLAIN: Rules = Rules {
    create_on_update: false,
    unconditional_update: true,
    delete_answers: DeleteAnswers::Status,
    graceful: false,
    generation: Generation::None,
    meta: SUBDOMAIN,
    repeat: Repeat::Update,
    status: StatusWrite::KeepsSpec,
};
const OBJECT: Rules = Rules { delete_answers: DeleteAnswers::Object, ..PLAIN };
const WITH_SPEC: Rules = Rules { generation: SPEC, ..PLAIN };
const GUARDED: Rules = Rules { unconditional_update: false, ..PLAIN };
const RBAC: Rules = Rules { create_on_update: true, meta: SEGMENT, repeat: Repeat::Both, ..PLAIN };
const CUSTOM: Rules = Rules {
    generation: Generation::Content,
    meta: MetaRule { name: NameRule::Subdomain, finalizers: FinalizerRule::Any },
    status: StatusWrite::KeepsAll,
    ..GUARDED
};

/// By group and kind; kinds that are not here are as `PLAIN`.
const ROWS: &[(&str, &str, Rules)] = &[
    ("", "Service", Rules { create_on_update: true, meta: LABEL, repeat: Repeat::Both, ..OBJECT }),
    (
        "",
        "Pod",
        Rules {
            graceful: true,
            generation: SPEC,
            repeat: Repeat::Both,
            status: StatusWrite::KeepsSpecAndOwners,
            ..OBJECT
        },
    ),
    ("", "Node", Rules { repeat: Repeat::Both, ..PLAIN }),
    ("", "Namespace", Rules { meta: LABEL, repeat: Repeat::Both, ..OBJECT }),
    ("", "ConfigMap", Rules { repeat: Repeat::Both, ..PLAIN }),
    ("", "Secret", Rules { repeat: Repeat::Both, ..PLAIN }),
    ("", "ServiceAccount", Rules { repeat: Repeat::Both, ..OBJECT }),
    ("", "Endpoints", Rules { create_on_update: true, repeat: Repeat::Both, ..PLAIN }),
    ("", "Event", EVENT),
    ("events.k8s.io", "Event", EVENT),
    ("", "LimitRange", Rules { create_on_update: true, repeat: Repeat::Form, ..PLAIN }),
    ("", "PersistentVolume", OBJECT),
    ("", "PersistentVolumeClaim", OBJECT),
    ("", "PodTemplate", Rules { generation: Generation::Part("template"), ..OBJECT }),
    ("", "ResourceQuota", OBJECT),
    ("", "ReplicationController", WITH_SPEC),
    (
        "apps",
        "Deployment",
        Rules {
            generation: Generation::SpecAndAnnotations,
            status: StatusWrite::KeepsSpecAndLabels,
            ..PLAIN
        },
    ),
    ("apps", "ReplicaSet", WITH_SPEC),
    ("apps", "DaemonSet", WITH_SPEC),
    ("apps", "StatefulSet", Rules { meta: LABEL, ..WITH_SPEC }),
    ("apps", "ControllerRevision", Rules { repeat: Repeat::Both, ..PLAIN }),
    ("batch", "Job", WITH_SPEC),
    ("batch", "CronJob", WITH_SPEC),
    ("networking.k8s.io", "Ingress", WITH_SPEC),
    ("networking.k8s.io", "IngressClass", WITH_SPEC),
    ("networking.k8s.io", "NetworkPolicy", WITH_SPEC),
    ("networking.k8s.io", "ServiceCIDR", Rules { status: StatusWrite::KeepsAll, ..PLAIN }),
    ("policy", "PodDisruptionBudget", Rules { generation: SPEC, ..GUARDED }),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        Rules { generation: Generation::ContentAndLabels, repeat: Repeat::Form, ..PLAIN },
    ),
    ("coordination.k8s.io", "Lease", Rules { create_on_update: true, ..GUARDED }),
    ("node.k8s.io", "RuntimeClass", Rules { create_on_update: true, ..GUARDED }),
    ("rbac.authorization.k8s.io", "Role", RBAC),
    ("rbac.authorization.k8s.io", "RoleBinding", RBAC),
    ("rbac.authorization.k8s.io", "ClusterRole", RBAC),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", RBAC),
    ("storage.k8s.io", "StorageClass", OBJECT),
    ("storage.k8s.io", "VolumeAttributesClass", OBJECT),
    ("storage.k8s.io", "CSIDriver", Rules { unconditional_update: false, ..OBJECT }),
    ("storage.k8s.io", "CSINode", Rules { unconditional_update: false, ..OBJECT }),
    ("storage.k8s.io", "CSIStorageCapacity", GUARDED),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        Rules { unconditional_update: false, status: StatusWrite::KeepsAll, ..OBJECT },
    ),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", ADMISSION),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", ADMISSION),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", ADMISSION),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", ADMISSION),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", WEBHOOKS),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", WEBHOOKS),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        Rules { delete_answers: DeleteAnswers::Object, ..CUSTOM },
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        Rules { meta: SEGMENT, status: StatusWrite::KeepsAll, ..GUARDED },
    ),
    ("resource.k8s.io", "DeviceClass", Rules { generation: SPEC, ..OBJECT }),
    ("resource.k8s.io", "ResourceSlice", Rules { generation: SPEC, ..OBJECT }),
    ("resource.k8s.io", "ResourceClaimTemplate", OBJECT),
    ("resource.k8s.io", "ResourceClaim", Rules { status: StatusWrite::KeepsAll, ..OBJECT }),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", FLOW),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", FLOW),
];

const EVENT: Rules = Rules {
    create_on_update: true,
    meta: MetaRule { name: NameRule::PathSegment, finalizers: FinalizerRule::Any },
    repeat: Repeat::Nothing,
    ..PLAIN
};
const ADMISSION: Rules = Rules { generation: SPEC, status: StatusWrite::KeepsAll, ..GUARDED };
const WEBHOOKS: Rules = Rules { generation: Generation::Part("webhooks"), ..GUARDED };
const FLOW: Rules = Rules { status: StatusWrite::KeepsAll, ..WITH_SPEC };

/// The rules for a resource.
pub fn rules(resource: &Resource) -> Rules {
    if resource.is_custom() {
        return CUSTOM;
    }
    let row = ROWS.iter().find(|row| row.1 == &*resource.kind && row.0 == &*resource.group);
    row.map_or(PLAIN, |row| row.2)
}

/// What a writer of a resource (or of a subresource) does not change, whatever it sends: such fields
/// stay as they are and are never owned by it. A path `metadata` alone means labels, annotations,
/// owners and finalizers.
pub fn reset_fields(
    resource: &Resource,
    subresource: Option<&str>,
) -> &'static [&'static [&'static str]] {
    match subresource {
        None if resource.subresource("status").is_some() => &[&["status"]],
        Some("finalize") => &[&["status"]],
        Some("status") => match rules(resource).status {
            StatusWrite::KeepsSpec => &[&["spec"]],
            StatusWrite::KeepsSpecAndLabels => &[&["spec"], &["metadata", "labels"]],
            StatusWrite::KeepsSpecAndOwners => {
                &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]
            }
            StatusWrite::KeepsAll => &[&["spec"], &["metadata"]],
        },
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::registry;

    #[test]
    fn every_row_is_of_a_kind_that_is_served() {
        let registry = registry();
        for (group, kind, _) in ROWS {
            let mut resources = registry.resources().iter();
            assert!(
                resources.any(|r| &*r.group == *group && &*r.kind == *kind),
                "{group} {kind} is not served"
            );
        }
    }

    #[test]
    fn writes_differ_as_recorded() {
        use DeleteAnswers::{Object, Status};
        let registry = registry();
        for (group, plural, create, unconditional, answers) in [
            ("", "services", true, true, Object),
            ("", "nodes", false, true, Status),
            ("", "namespaces", false, true, Object),
            ("", "configmaps", false, true, Status),
            ("coordination.k8s.io", "leases", true, false, Status),
            ("", "events", true, true, Status),
            ("discovery.k8s.io", "endpointslices", false, true, Status),
            ("", "pods", false, true, Object),
            ("apps", "deployments", false, true, Status),
            ("apps", "replicasets", false, true, Status),
            ("apiextensions.k8s.io", "customresourcedefinitions", false, false, Object),
        ] {
            let rules = rules(registry.find(group, "v1", plural).expect("it is built in"));
            let found = (rules.create_on_update, rules.unconditional_update, rules.delete_answers);
            assert_eq!(found, (create, unconditional, answers), "{plural}");
        }
    }
}
