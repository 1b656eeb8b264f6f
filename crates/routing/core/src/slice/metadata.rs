//! Labels and ownership of the slices of a Service.

use crate::key::Name;
use crate::labels::{Labels, well_known};
use crate::model::{AddressType, Service, Slice};

const RESERVED: [&str; 3] =
    [well_known::SERVICE_NAME, well_known::MANAGED_BY, well_known::HEADLESS];

/// The labels of a slice of this Service: the Service's labels without the reserved keys, plus the
/// reserved labels with their required values.
pub fn slice_labels(service: &Service, controller: &Name) -> Labels {
    let own = service.labels.iter().filter(|(key, _)| !RESERVED.contains(&key.as_str()));
    let mut labels: Vec<(Name, Name)> = own.map(|(k, v)| (k.clone(), v.clone())).collect();
    labels.push((Name::from(well_known::SERVICE_NAME), service.key.name.clone()));
    labels.push((Name::from(well_known::MANAGED_BY), controller.clone()));
    if service.is_headless() {
        labels.push((Name::from(well_known::HEADLESS), Name::from("")));
    }
    labels.into_iter().collect()
}

/// Whether a slice must be rewritten because of its labels. Only labels that are not reserved
/// count, as in upstream; a wrong reserved label is corrected with the next write of the slice.
pub fn labels_changed(slice: &Labels, service: &Labels) -> bool {
    let free = |labels: &Labels| -> Vec<(Name, Name)> {
        labels
            .iter()
            .filter(|(key, _)| !RESERVED.contains(&key.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    free(slice) != free(service)
}

/// An empty slice of this Service, without a name.
pub fn new_slice(service: &Service, labels: &Labels, address_type: AddressType) -> Slice {
    Slice {
        labels: labels.clone(),
        owners: vec![service.uid.clone()],
        ..Slice::new(service.key.namespace.clone(), "", address_type)
    }
}

/// Whether two slices are the same placeholder; names, times and owners are ignored.
pub fn same_placeholder(a: &Slice, b: &Slice) -> bool {
    a.namespace == b.namespace
        && a.labels == b.labels
        && a.address_type == b.address_type
        && a.ports == b.ports
        && a.endpoints == b.endpoints
}
