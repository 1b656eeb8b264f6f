//! The strategies of the built-in kinds as one table, and that of custom resources.

use serde_json::json;

use super::{
    DeleteAnswers, Generation,
    InitialStatus::{self, Given, Own},
    Repeat, Review, StoredForm, Strategy, Write,
};
use crate::fields;
use crate::json::{fill, make};
use crate::metadata::{FinalizerRule, MetaRule, NameRule};
use crate::table::pod_finished;
use crate::verb::Subresource;
use crate::workload::{self, Workload};
use crate::{
    autoscaler, crd, endpoints, endpointslice, event, namespace, node, pod, service, simple,
};

const SUBDOMAIN: MetaRule =
    MetaRule { name: NameRule::Subdomain, finalizers: FinalizerRule::Standard };
const LABEL: MetaRule = MetaRule { name: NameRule::Label, ..SUBDOMAIN };
const SEGMENT: MetaRule = MetaRule { name: NameRule::PathSegment, ..SUBDOMAIN };
const SPEC: Generation = Generation::Field("spec");
const ALL_BUT_STATUS: &[&str] = &["spec", "metadata"];
const TEMPLATE: &[&str] = &["spec", "template"];

/// A kind without rules of its own. Rows name the differences.
const PLAIN: Strategy = Strategy {
    create_on_update: false,
    unconditional_update: true,
    delete_answers: DeleteAnswers::Status,
    graceful: false,
    protected: &[],
    terminate: None,
    spec_finalizers: false,
    allocates: false,
    review: None,
    deprecation: None,
    stored_form: None,
    storage_version: None,
    generation: Generation::None,
    meta: SUBDOMAIN,
    metadata_last: false,
    repeat: Repeat::Update,
    kept_by_status: &["spec"],
    initial_status: InitialStatus::Empty,
    default: |_| {},
    prepare_create: |_, _| {},
    prepare_update: |_, _, _| {},
    prepare_status: |_, _, _| {},
    validate: |_, _, _| Vec::new(),
    validate_status: |_, _, _| Vec::new(),
    ignored: |_, _, _| Vec::new(),
    warnings: |_, _| Vec::new(),
    status_warnings: |_| Vec::new(),
    fields: "",
    namespace_field: true,
    row_conditions: |_| None,
};
const OBJECT: Strategy = Strategy { delete_answers: DeleteAnswers::Object, ..PLAIN };
const WITH_SPEC: Strategy = Strategy { generation: SPEC, ..PLAIN };
const GUARDED: Strategy = Strategy { unconditional_update: false, ..PLAIN };
const GUARDED_OBJECT: Strategy = Strategy { unconditional_update: false, ..OBJECT };
const REPEATED: Strategy = Strategy { repeat: Repeat::Both, ..PLAIN };
const RBAC: Strategy = Strategy { create_on_update: true, meta: SEGMENT, ..REPEATED };
const BINDING: Strategy = Strategy { default: simple::default_binding, ..RBAC };
const ADMISSION: Strategy =
    Strategy { generation: SPEC, kept_by_status: ALL_BUT_STATUS, ..GUARDED };
const WEBHOOKS: Strategy = Strategy { generation: Generation::Field("webhooks"), ..GUARDED };
const FLOW: Strategy = Strategy { kept_by_status: ALL_BUT_STATUS, ..WITH_SPEC };
const WORKLOAD: Strategy = Strategy {
    validate_status: |new, _, _| workload::validate_status(new),
    warnings: |new, old| workload::template_warnings(new, old, TEMPLATE),
    ..WITH_SPEC
};
const EVENT: Strategy = Strategy {
    create_on_update: true,
    meta: MetaRule { name: NameRule::PathSegment, finalizers: FinalizerRule::Any },
    metadata_last: true,
    repeat: Repeat::Nothing,
    ..PLAIN
};
const CORE_EVENT: Strategy = Strategy {
    validate: |new, old, _| event::validate(new, old, event::View::Core),
    fields: fields::CORE_EVENT,
    ..EVENT
};
const AUTOSCALER: Strategy = Strategy {
    storage_version: Some("autoscaling/v2"),
    default: |object| fill(make(object, &["spec"]), "minReplicas", 1),
    ..PLAIN
};
const AUTOSCALER_V2: Strategy = Strategy {
    initial_status: Given(|| json!({"currentMetrics": null, "desiredReplicas": 0})),
    ..AUTOSCALER
};
const MUTATING_ADMISSION: Strategy =
    Strategy { storage_version: Some("admissionregistration.k8s.io/v1beta1"), ..ADMISSION };

/// Objects of custom resources; their rules are in the definition that the resource holds.
pub(crate) const CUSTOM: Strategy = Strategy {
    generation: Generation::Own,
    meta: MetaRule { name: NameRule::Subdomain, finalizers: FinalizerRule::Any },
    kept_by_status: ALL_BUT_STATUS,
    initial_status: Own,
    prepare_create: |new, write| crd::prepare_create(write.resource, new),
    prepare_update: |new, old, Write { resource, subresource, .. }| {
        crd::prepare_update(resource, *subresource, new, old);
    },
    prepare_status: |new, old, write| {
        crd::prepare_update(write.resource, Some(Subresource::Status), new, old);
    },
    validate: |new, old, write| crd::validate(write.resource, write.subresource, new, old),
    validate_status: |new, old, write| {
        crd::validate(write.resource, write.subresource, new, Some(old))
    },
    ..GUARDED
};

const COMPONENT_STATUS: Strategy =
    Strategy { deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"), ..PLAIN };
const CONFIG_MAP: Strategy =
    Strategy { validate: |new, old, _| simple::validate_config_map(new, old), ..REPEATED };
const ENDPOINTS: Strategy = Strategy {
    create_on_update: true,
    deprecation: Some(
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    default: endpoints::default,
    validate: |new, old, _| endpoints::validate(new, old),
    warnings: |new, _| endpoints::warnings(new),
    ..REPEATED
};
const LIMIT_RANGE: Strategy = Strategy { create_on_update: true, repeat: Repeat::Form, ..PLAIN };
const NAMESPACE: Strategy = Strategy {
    meta: LABEL,
    repeat: Repeat::Both,
    protected: &["default", "kube-system", "kube-public"],
    terminate: Some(namespace::terminate),
    spec_finalizers: true,
    initial_status: Own,
    default: namespace::default,
    prepare_create: |new, _| namespace::prepare_create(new),
    prepare_update: |new, old, write| {
        if write.subresource.is_none() {
            namespace::prepare_update(new, old);
        }
    },
    validate: |new, _, _| namespace::validate(new),
    ignored: |new, _, write| service::warn_namespace_default(new, &write.context.cluster.gates),
    validate_status: |new, _, _| namespace::validate_status(new),
    fields: "status.phase",
    namespace_field: false,
    ..OBJECT
};
const NODE: Strategy = Strategy {
    initial_status: Own,
    default: node::default,
    prepare_create: |new, _| node::prepare_create(new),
    validate: |new, old, _| node::validate(new, old),
    validate_status: |new, old, _| node::validate_update(new, old),
    warnings: |new, _| node::warnings(new),
    fields: "spec.unschedulable",
    namespace_field: false,
    ..REPEATED
};
const PERSISTENT_VOLUME: Strategy = Strategy {
    initial_status: Given(|| json!({"phase": "Pending"})),
    default: simple::default_volume,
    ..OBJECT
};
const PERSISTENT_VOLUME_CLAIM: Strategy = Strategy {
    initial_status: Given(|| json!({"phase": "Pending"})),
    default: |object| fill(make(object, &["spec"]), "volumeMode", "Filesystem"),
    ..OBJECT
};
const POD: Strategy = Strategy {
    graceful: true,
    generation: SPEC,
    repeat: Repeat::Both,
    kept_by_status: &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"],
    initial_status: Own,
    default: pod::default,
    prepare_create: |new, write| {
        pod::prepare_create(new, write.context.now, write.context.node_labels);
    },
    prepare_update: |new, old, write| {
        if write.subresource.is_none() {
            pod::prepare_update(new, old, write.context.node_labels);
        }
    },
    prepare_status: |new, old, _| pod::prepare_status_update(new, old),
    validate: |new, old, _| match old {
        None => pod::validate_create(new),
        Some(old) => pod::validate_update(new, old),
    },
    validate_status: |new, old, _| pod::validate_status_update(new, old),
    warnings: |new, old| if old.is_none() { pod::warnings(new) } else { Vec::new() },
    fields: fields::POD,
    row_conditions: pod_finished,
    ..OBJECT
};
const POD_TEMPLATE: Strategy = Strategy {
    generation: Generation::Field("template"),
    default: |object| pod::default_template(object, &["template"]),
    warnings: |new, old| workload::template_warnings(new, old, &["template"]),
    ..OBJECT
};
const REPLICATION_CONTROLLER: Strategy = Strategy {
    initial_status: Given(|| json!({"replicas": 0})),
    default: workload::default_replication_controller,
    validate: |new, old, _| workload::validate(new, old, Workload::ReplicationController),
    fields: "status.replicas",
    ..WORKLOAD
};
const SECRET: Strategy = Strategy {
    default: simple::default_secret,
    validate: |new, old, _| simple::validate_secret(new, old),
    fields: "type",
    ..REPEATED
};
const SERVICE: Strategy = Strategy {
    create_on_update: true,
    allocates: true,
    meta: LABEL,
    repeat: Repeat::Both,
    initial_status: Own,
    default: service::default,
    prepare_create: |new, write| service::prepare_create(new, write.context.cluster),
    prepare_update: |new, old, write| {
        service::prepare_update(new, old, write.context.cluster);
    },
    validate: |new, old, write| match old {
        None => service::validate_create(new, write.context.cluster),
        Some(old) => service::validate_update(new, old, write.context.cluster),
    },
    validate_status: |new, old, _| service::validate_status_update(new, old),
    ignored: |new, old, write| service::warn_ignored(new, old, &write.context.cluster.gates),
    warnings: |new, _| service::warnings(new),
    status_warnings: service::status_warnings,
    fields: "spec.clusterIP spec.type",
    ..OBJECT
};
const SERVICE_ACCOUNT: Strategy = Strategy { repeat: Repeat::Both, ..OBJECT };
const DAEMON_SET: Strategy = Strategy {
    initial_status: Given(workload::daemon_set_status),
    default: workload::default_daemon_set,
    prepare_create: |new, _| workload::prepare_daemon_set(new),
    prepare_update: |new, old, _| workload::update_daemon_set(new, old),
    validate: |new, old, _| workload::validate(new, old, Workload::DaemonSet),
    ..WORKLOAD
};
const DEPLOYMENT: Strategy = Strategy {
    generation: Generation::SpecAndAnnotations,
    kept_by_status: &["spec", "metadata.labels"],
    default: workload::default_deployment,
    validate: |new, old, _| workload::validate(new, old, Workload::Deployment),
    warnings: workload::warnings_with_name,
    ..WORKLOAD
};
const REPLICA_SET: Strategy = Strategy {
    initial_status: Given(|| json!({"replicas": 0})),
    default: workload::default_replica_set,
    validate: |new, old, _| workload::validate(new, old, Workload::ReplicaSet),
    warnings: workload::warnings_with_name,
    ..WORKLOAD
};
const STATEFUL_SET: Strategy = Strategy {
    meta: LABEL,
    initial_status: Given(|| json!({"replicas": 0, "availableReplicas": 0})),
    default: workload::default_stateful_set,
    validate: |new, old, _| workload::validate(new, old, Workload::StatefulSet),
    ..WORKLOAD
};
const JOB: Strategy = Strategy {
    default: workload::default_job,
    prepare_create: |new, _| workload::prepare_job(new),
    validate: |new, old, _| workload::validate_job(new, old),
    warnings: |new, old| workload::template_warnings(new, old, TEMPLATE),
    fields: "status.successful",
    ..WITH_SPEC
};
const CRON_JOB: Strategy = Strategy {
    default: workload::default_cron_job,
    validate: |new, _, _| workload::validate_cron_job(new),
    warnings: |new, old| workload::template_warnings(new, old, workload::CRON_JOB_TEMPLATE),
    ..WITH_SPEC
};
const NEW_EVENT: Strategy = Strategy {
    storage_version: Some("/v1"),
    stored_form: Some(StoredForm {
        strategy: &CORE_EVENT,
        to_stored: event::to_core,
        from_stored: event::to_events,
        storage: "events",
    }),
    validate: |new, old, _| event::validate(new, old, event::View::Events),
    fields: fields::EVENT,
    ..EVENT
};
const AUTOSCALER_V1: Strategy = Strategy {
    initial_status: Given(|| json!({"currentReplicas": 0, "desiredReplicas": 0})),
    stored_form: Some(StoredForm {
        strategy: &AUTOSCALER_V2,
        to_stored: autoscaler::to_v2,
        from_stored: autoscaler::to_v1,
        storage: "horizontalpodautoscalers.autoscaling",
    }),
    ..AUTOSCALER
};
const CERTIFICATE_SIGNING_REQUEST: Strategy = Strategy { fields: "spec.signerName", ..PLAIN };
const LEASE: Strategy = Strategy {
    create_on_update: true,
    validate: |new, _, _| simple::validate_lease(new),
    ..GUARDED
};
const ENDPOINT_SLICE: Strategy = Strategy {
    generation: Generation::Own,
    repeat: Repeat::Form,
    default: endpointslice::default,
    prepare_create: |new, write| endpointslice::prepare_create(new, write.context.cluster),
    prepare_update: |new, old, write| {
        endpointslice::prepare_update(new, old, write.context.cluster);
    },
    validate: |new, old, _| match old {
        None => endpointslice::validate_create(new),
        Some(old) => endpointslice::validate_update(new, old),
    },
    warnings: endpointslice::warnings,
    ..PLAIN
};
const INGRESS: Strategy =
    Strategy { initial_status: Given(|| json!({"loadBalancer": {}})), ..WITH_SPEC };
const INGRESS_CLASS: Strategy = Strategy { default: simple::default_ingress_class, ..WITH_SPEC };
const NETWORK_POLICY: Strategy = Strategy { default: simple::default_network_policy, ..WITH_SPEC };
const SERVICE_CIDR: Strategy = Strategy { kept_by_status: ALL_BUT_STATUS, ..PLAIN };
const RUNTIME_CLASS: Strategy = Strategy { create_on_update: true, ..GUARDED };
const POD_DISRUPTION_BUDGET: Strategy = Strategy {
    generation: SPEC,
    initial_status: Given(
        || json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, }),
    ),
    ..GUARDED
};
const PRIORITY_CLASS: Strategy = Strategy {
    default: |object| fill(object, "preemptionPolicy", "PreemptLowerPriority"),
    ..PLAIN
};
const STORAGE_CLASS: Strategy = Strategy { default: simple::default_storage_class, ..OBJECT };
const VOLUME_ATTACHMENT: Strategy = Strategy {
    kept_by_status: ALL_BUT_STATUS,
    initial_status: Given(|| json!({"attached": false})),
    ..GUARDED_OBJECT
};
const MUTATING_WEBHOOK_CONFIGURATION: Strategy =
    Strategy { default: simple::default_mutating_webhooks, ..WEBHOOKS };
const VALIDATING_WEBHOOK_CONFIGURATION: Strategy =
    Strategy { default: simple::default_webhooks, ..WEBHOOKS };
const CUSTOM_RESOURCE_DEFINITION: Strategy = Strategy {
    delete_answers: DeleteAnswers::Object,
    terminate: Some(crd::mark_terminating),
    storage_version: Some("apiextensions.k8s.io/v1beta1"),
    default: crd::default_crd,
    prepare_create: |new, _| crd::prepare_crd_create(new),
    prepare_update: |new, old, _| crd::prepare_crd_update(new, old),
    prepare_status: |new, old, _| crd::prepare_crd_status_update(new, old),
    validate: |new, old, _| match old {
        None => crd::validate_crd(new),
        Some(old) => crd::validate_crd_update(new, old),
    },
    validate_status: |_, _, _| Vec::new(),
    warnings: |new, _| crd::warnings(new),
    ..CUSTOM
};
const API_SERVICE: Strategy = Strategy { meta: SEGMENT, kept_by_status: ALL_BUT_STATUS, ..GUARDED };
const DEVICE_CLASS: Strategy = Strategy { generation: SPEC, ..OBJECT };
const RESOURCE_CLAIM: Strategy = Strategy { kept_by_status: ALL_BUT_STATUS, ..OBJECT };
const RESOURCE_SLICE: Strategy = Strategy { generation: SPEC, ..OBJECT };

/// The API server answers these and stores nothing.
const fn review(review: Review) -> Strategy {
    Strategy { review: Some(review), ..PLAIN }
}

/// The strategy of a built-in kind.
pub(crate) fn strategy_of(api_version: &str, kind: &str) -> &'static Strategy {
    let row = ROWS.iter().find(|row| row.0 == api_version && row.1 == kind);
    row.map_or(&PLAIN, |row| &row.2)
}

/// By group version and kind; a kind without a row is `PLAIN`.
static ROWS: &[(&str, &str, Strategy)] = &[
    ("v1", "ComponentStatus", COMPONENT_STATUS),
    ("v1", "ConfigMap", CONFIG_MAP),
    ("v1", "Endpoints", ENDPOINTS),
    ("v1", "Event", CORE_EVENT),
    ("v1", "LimitRange", LIMIT_RANGE),
    ("v1", "Namespace", NAMESPACE),
    ("v1", "Node", NODE),
    ("v1", "PersistentVolume", PERSISTENT_VOLUME),
    ("v1", "PersistentVolumeClaim", PERSISTENT_VOLUME_CLAIM),
    ("v1", "Pod", POD),
    ("v1", "PodTemplate", POD_TEMPLATE),
    ("v1", "ReplicationController", REPLICATION_CONTROLLER),
    ("v1", "ResourceQuota", OBJECT),
    ("v1", "Secret", SECRET),
    ("v1", "Service", SERVICE),
    ("v1", "ServiceAccount", SERVICE_ACCOUNT),
    ("apps/v1", "ControllerRevision", REPEATED),
    ("apps/v1", "DaemonSet", DAEMON_SET),
    ("apps/v1", "Deployment", DEPLOYMENT),
    ("apps/v1", "ReplicaSet", REPLICA_SET),
    ("apps/v1", "StatefulSet", STATEFUL_SET),
    ("batch/v1", "Job", JOB),
    ("batch/v1", "CronJob", CRON_JOB),
    ("events.k8s.io/v1", "Event", NEW_EVENT),
    ("autoscaling/v1", "HorizontalPodAutoscaler", AUTOSCALER_V1),
    ("autoscaling/v2", "HorizontalPodAutoscaler", AUTOSCALER_V2),
    ("authentication.k8s.io/v1", "SelfSubjectReview", review(Review::SelfSubject)),
    ("authentication.k8s.io/v1", "TokenReview", review(Review::Token)),
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview", review(Review::SubjectAccess)),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview", review(Review::SelfSubjectAccess)),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview", review(Review::SelfSubjectRules)),
    ("authorization.k8s.io/v1", "SubjectAccessReview", review(Review::SubjectAccess)),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", CERTIFICATE_SIGNING_REQUEST),
    ("coordination.k8s.io/v1", "Lease", LEASE),
    ("discovery.k8s.io/v1", "EndpointSlice", ENDPOINT_SLICE),
    ("networking.k8s.io/v1", "Ingress", INGRESS),
    ("networking.k8s.io/v1", "IngressClass", INGRESS_CLASS),
    ("networking.k8s.io/v1", "NetworkPolicy", NETWORK_POLICY),
    ("networking.k8s.io/v1", "ServiceCIDR", SERVICE_CIDR),
    ("node.k8s.io/v1", "RuntimeClass", RUNTIME_CLASS),
    ("policy/v1", "PodDisruptionBudget", POD_DISRUPTION_BUDGET),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", RBAC),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", BINDING),
    ("rbac.authorization.k8s.io/v1", "Role", RBAC),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", BINDING),
    ("scheduling.k8s.io/v1", "PriorityClass", PRIORITY_CLASS),
    ("storage.k8s.io/v1", "CSIDriver", GUARDED_OBJECT),
    ("storage.k8s.io/v1", "CSINode", GUARDED_OBJECT),
    ("storage.k8s.io/v1", "CSIStorageCapacity", GUARDED),
    ("storage.k8s.io/v1", "StorageClass", STORAGE_CLASS),
    ("storage.k8s.io/v1", "VolumeAttachment", VOLUME_ATTACHMENT),
    ("storage.k8s.io/v1", "VolumeAttributesClass", OBJECT),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", MUTATING_ADMISSION),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", MUTATING_ADMISSION),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        MUTATING_WEBHOOK_CONFIGURATION,
    ),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", ADMISSION),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", ADMISSION),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        VALIDATING_WEBHOOK_CONFIGURATION,
    ),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", CUSTOM_RESOURCE_DEFINITION),
    ("apiregistration.k8s.io/v1", "APIService", API_SERVICE),
    ("resource.k8s.io/v1", "DeviceClass", DEVICE_CLASS),
    ("resource.k8s.io/v1", "ResourceClaim", RESOURCE_CLAIM),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", OBJECT),
    ("resource.k8s.io/v1", "ResourceSlice", RESOURCE_SLICE),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", FLOW),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", FLOW),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::registry;

    #[test]
    fn every_row_is_a_served_kind() {
        let registry = registry();
        for (api_version, kind, _) in ROWS {
            let mut resources = registry.resources().iter();
            assert!(
                resources.any(|r| r.api_version() == *api_version && &*r.kind == *kind),
                "{api_version} {kind} is not served"
            );
        }
    }

    #[test]
    fn strategies_match_the_recordings() {
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
            let found = registry.find(group, "v1", plural).expect("the kind is built in").strategy;
            let found = (found.create_on_update, found.unconditional_update, found.delete_answers);
            assert_eq!(found, (create, unconditional, answers), "{plural}");
        }
    }
}
