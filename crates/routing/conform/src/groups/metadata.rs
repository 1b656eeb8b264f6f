//! The metadata of a slice: labels, owners, address families.

use nearhop_core::Family;
use nearhop_core::model::{AddressType, Service};
use nearhop_core::routing::SliceRouting;
use nearhop_core::slice::{labels_changed, new_slice, slice_labels};
use serde_json::json;

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{cluster_ips, family, labels_value, texts, topology_spec, usual_service};
use crate::read::CaseError;

/// The Service of a row that gives its parts directly.
fn service(case: &Case<'_>) -> Result<Service, CaseError> {
    Ok(Service {
        labels: case.row.get("service_labels")?.labels()?,
        cluster_ips: cluster_ips(&case.row)?,
        topology: topology_spec(&case.row.get("service_annotations")?)?,
        ..usual_service()
    })
}

/// `address_types_for_service`.
pub(super) fn address_types(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let selector = case.row.get("selector")?;
    let service = Service {
        ip_families: case.row.get("ip_families")?.each(family)?,
        selector: if selector.is_null() { None } else { Some(selector.labels()?) },
        ..service(case)?
    };
    let families: Vec<&str> = service.families().into_iter().map(Family::as_str).collect();
    check.value(&case.row, Rule::Bag(&Rule::Exact), json!(families))
}

/// `slice_labels`: the labels of a slice, and whether its present labels require a rewrite.
pub(super) fn labels(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let service = service(case)?;
    let labels = slice_labels(&service, &case.controller()?);
    let changed = labels_changed(&case.row.get("slice_labels")?.labels()?, &service.labels);
    check.fields(&case.row, |key| match key {
        "labels" => Some((Rule::Exact, labels_value(&labels))),
        "changed" => Some((Rule::Exact, json!(changed))),
        _ => None,
    })
}

/// `new_slice`. Every row expects its labels, and the fields in the note of the file.
pub(super) fn new(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let service = service(case)?;
    let labels = slice_labels(&service, &case.controller()?);
    let slice = new_slice(&service, &labels, AddressType::Ip(Family::Ipv4));
    let annotated = slice.trigger_time.is_some() || slice.routing != SliceRouting::Absent;
    let namespace = json!(slice.namespace.as_str());
    check.implied("namespace", &json!(service.key.namespace.as_str()), &namespace);
    check.implied("owners", &json!([service.uid.as_str()]), &json!(texts(&slice.owners)));
    check.implied("endpoints", &json!(0), &json!(slice.endpoints.len()));
    check.implied("annotated", &json!(false), &json!(annotated));
    check.fields(&case.row, |key| match key {
        "labels" => Some((Rule::Exact, labels_value(&slice.labels))),
        "namespace" => Some((Rule::Exact, namespace.clone())),
        _ => None,
    })
}
