//! Descriptions of the built-in kinds, as `kubectl explain` shows them.
//!
//! The texts come from the JSON schemas of `k8s-openapi`. Shapes come from our own table, since
//! those schemas have no list types, merge keys or defaults.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::authentication::v1 as authentication;
use k8s_openapi::api::authorization::v1 as authorization;
use k8s_openapi::api::autoscaling::{v1 as autoscaling_v1, v2 as autoscaling_v2};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::certificates::v1 as certificates;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::api::flowcontrol::v1 as flowcontrol;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::api::node::v1 as node;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::rbac::v1 as rbac;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::SchemaGenerator;
use serde_json::Value;

static TEXTS: LazyLock<BTreeMap<String, Texts>> = LazyLock::new(collect);

/// The texts of one struct.
#[derive(Debug, Default)]
struct Texts {
    itself: Option<String>,
    fields: BTreeMap<String, String>,
}

/// What a schema is, by its full name.
pub(super) fn of_schema(schema: &str) -> Option<&'static str> {
    TEXTS.get(schema)?.itself.as_deref()
}

/// What a field of a schema is.
pub(super) fn of_field(schema: &str, field: &str) -> Option<&'static str> {
    TEXTS.get(schema)?.fields.get(field).map(String::as_str)
}

fn collect() -> BTreeMap<String, Texts> {
    let mut generator = SchemaGenerator::default();
    visit_core(&mut generator);
    visit_workloads(&mut generator);
    visit_others(&mut generator);
    let schemas = generator.take_definitions(false);
    schemas.into_iter().map(|(name, schema)| (name, texts(schema))).collect()
}

fn texts(schema: Value) -> Texts {
    let Value::Object(mut schema) = schema else { return Texts::default() };
    let itself = schema.remove("description").and_then(into_text);
    let fields = match schema.remove("properties") {
        Some(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let fields = fields.into_iter().filter_map(|(name, mut field)| {
        let text = field.get_mut("description").map(Value::take).and_then(into_text)?;
        Some((name, text))
    });
    Texts { itself, fields: fields.collect() }
}

fn into_text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Adds types to the generator, with all types that they refer to.
macro_rules! visit {
    ($generator:ident: $($kind:ty),+ $(,)?) => {
        $($generator.subschema_for::<$kind>();)+
    };
}

fn visit_core(generator: &mut SchemaGenerator) {
    visit!(generator:
        core::Binding, core::ComponentStatus, core::ConfigMap, core::Endpoints, core::Event,
        core::LimitRange, core::Namespace, core::Node, core::PersistentVolume,
        core::PersistentVolumeClaim, core::Pod, core::PodTemplate, core::ReplicationController,
        core::ResourceQuota, core::Secret, core::Service, core::ServiceAccount,
        meta::DeleteOptions, meta::Patch, meta::Status,
    );
}

fn visit_workloads(generator: &mut SchemaGenerator) {
    visit!(generator:
        apps::ControllerRevision, apps::DaemonSet, apps::Deployment, apps::ReplicaSet, apps::StatefulSet,
        autoscaling_v1::HorizontalPodAutoscaler, autoscaling_v1::Scale,
        autoscaling_v2::HorizontalPodAutoscaler,
        batch::CronJob, batch::Job,
        discovery::EndpointSlice, events::Event,
        networking::Ingress, networking::IngressClass, networking::IPAddress,
        networking::NetworkPolicy, networking::ServiceCIDR,
        policy::Eviction, policy::PodDisruptionBudget,
    );
}

fn visit_others(generator: &mut SchemaGenerator) {
    visit!(generator:
        admission::MutatingAdmissionPolicy, admission::MutatingAdmissionPolicyBinding,
        admission::MutatingWebhookConfiguration, admission::ValidatingAdmissionPolicy,
        admission::ValidatingAdmissionPolicyBinding, admission::ValidatingWebhookConfiguration,
        apiextensions::CustomResourceDefinition, apiregistration::APIService,
        authentication::SelfSubjectReview, authentication::TokenRequest, authentication::TokenReview,
        authorization::LocalSubjectAccessReview, authorization::SelfSubjectAccessReview,
        authorization::SelfSubjectRulesReview, authorization::SubjectAccessReview,
        certificates::CertificateSigningRequest, coordination::Lease,
        flowcontrol::FlowSchema, flowcontrol::PriorityLevelConfiguration,
        node::RuntimeClass,
        rbac::ClusterRole, rbac::ClusterRoleBinding, rbac::Role, rbac::RoleBinding,
        resource::DeviceClass, resource::ResourceClaim, resource::ResourceClaimTemplate,
        resource::ResourceSlice,
        scheduling::PriorityClass,
        storage::CSIDriver, storage::CSINode, storage::CSIStorageCapacity, storage::StorageClass,
        storage::VolumeAttachment, storage::VolumeAttributesClass,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_kind_has_a_description() {
        for resource in crate::builtin::registry().resources() {
            let shape = resource.schema.as_ref().and_then(|schema| schema.node().as_struct());
            let name = crate::openapi::name::of_struct(&shape.expect("the kind is a struct").name);
            assert!(of_schema(&name).is_some_and(|text| !text.is_empty()), "{name}");
        }
        assert!(of_field("io.k8s.api.core.v1.ServiceSpec", "trafficDistribution").is_some());
        assert!(of_field("io.k8s.api.core.v1.ServiceSpec", "nothing").is_none());
    }
}
