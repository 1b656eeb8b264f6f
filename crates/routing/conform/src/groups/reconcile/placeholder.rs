//! `reconciler_placeholder`: the empty slice of a Service without endpoints.

use std::net::Ipv4Addr;

use nearhop_core::Name;
use nearhop_core::model::{AddressType, Endpoint, Service, Slice};
use nearhop_core::slice::{new_slice, same_placeholder};
use serde_json::{Value, json};

use super::super::Case;
use super::bench::Bench;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{slice_ports, usual_service};
use crate::read::{CaseError, Field};

/// Rows with `left` and `right` compare two placeholders; the others reconcile a Service without
/// Pods.
pub(in super::super) fn placeholder(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    let service = usual_service();
    if case.row.has("left") || case.row.has("right") {
        return compare(case, &service, check);
    }
    let mut bench = Bench::new(case)?;
    let existing = case.row.get("existing")?;
    let rows = match existing.value() {
        Value::Object(_) => vec![existing],
        _ => existing.list()?,
    };
    let slice = |(at, row): (usize, &Field<'_>)| {
        let slice = slice(row, &service)?;
        let named = !slice.name.is_empty();
        let name = if named { slice.name } else { Name::from(format!("existing-{at}")) };
        Ok(Slice { name, ..slice })
    };
    bench.put(rows.iter().enumerate().map(slice).collect::<Result<Vec<_>, CaseError>>()?);
    bench.reconcile(&service, &[]);
    check.fields(&case.row, |key| bench.value(key))
}

fn compare(case: &Case<'_>, service: &Service, check: &mut Check<'_>) -> Result<(), CaseError> {
    let side = |key: &str| {
        let row = case.row.get(key)?;
        if row.is_null() { Ok(None) } else { slice(&row, service).map(Some) }
    };
    // Two absent slices are equal.
    let equal = match (side("left")?, side("right")?) {
        (Some(left), Some(right)) => same_placeholder(&left, &right),
        (left, right) => left.is_none() && right.is_none(),
    };
    check.fields(&case.row, |key| match key {
        "equal" => Some((Rule::Exact, json!(equal))),
        _ => None,
    })
}

/// A slice as these rows write it; the equality rows use the API's spelling `addressType`.
fn slice(row: &Field<'_>, service: &Service) -> Result<Slice, CaseError> {
    let plain = row.get("address_type")?;
    let address_type = plain.optional().map_or_else(|| row.get("addressType"), Ok)?;
    let address_type = AddressType::parse(address_type.text_or("")?);
    let owner = row.get("owner_uid")?.set_name()?;
    let empty = new_slice(service, &row.get("labels")?.labels()?, address_type);
    Ok(Slice {
        namespace: row.get("namespace")?.name()?.unwrap_or(empty.namespace),
        name: Name::from(row.get("name")?.text_or("")?),
        owners: owner.map_or(empty.owners, |owner| vec![owner]),
        ports: slice_ports(&row.get("ports")?)?,
        endpoints: endpoints(&row.get("endpoints")?)?,
        ..empty
    })
}

/// A number of endpoints, or the length of a list.
fn endpoints(field: &Field<'_>) -> Result<Vec<Endpoint>, CaseError> {
    let count = match field.value() {
        Value::Array(items) => items.len(),
        _ => field.count_or(0, 1000)?,
    };
    let address = |at: usize| Ipv4Addr::from((10 << 24) + at as u32).into();
    Ok((0..count).map(|at| Endpoint::at(address(at))).collect())
}
