//! The cluster for DNS questions, and the settings of the server.

use std::collections::BTreeSet;

use nearhop_core::answer::{self, AskedName, EmptyServices, EndpointNames, PodMode, Zone};
use nearhop_core::labels::well_known;
use nearhop_core::model::{
    AddressType, Addresses, Endpoint, Locator, Namespace, PodRef, Service, Slice,
};
use nearhop_core::world::{self, World};
use nearhop_core::{Change, Name, PodKey, ServiceKey};

use crate::objects::{address, cluster_ips, conditions, service_ports, service_type, slice_ports};
use crate::read::{CaseError, Field};

/// The settings of a file, overridden by those of a row.
pub(super) struct Settings<'a> {
    file: Field<'a>,
    row: Field<'a>,
}

impl<'a> Settings<'a> {
    pub(super) fn read(file: &Field<'a>, row: &Field<'a>) -> Self {
        Self { file: file.clone(), row: row.clone() }
    }

    fn get(&self, key: &str) -> Result<Field<'a>, CaseError> {
        if self.row.has(key) { self.row.get(key) } else { self.file.get(key) }
    }

    pub(super) fn flag_or(&self, key: &str, other: bool) -> Result<bool, CaseError> {
        Ok(self.get(key)?.condition()?.unwrap_or(other))
    }

    /// The settings as a configuration of the answer code.
    pub(super) fn answers(&self, fixture: &Field<'_>) -> Result<answer::Config, CaseError> {
        let zone = |field: &Field<'_>| {
            Zone::parse(field.text()?).map_err(|error| field.error(error.to_string()))
        };
        let top = |field: &Field<'_>| {
            AskedName::parse(field.text()?).map_err(|error| field.error(error.to_string()))
        };
        let pods = self.get("pods")?;
        Ok(answer::Config {
            zones: self.get("zones")?.each(zone)?,
            ttl: self.get("ttl")?.count_or(5, 3600)? as u32,
            pods: match pods.text_or("disabled")? {
                "disabled" => PodMode::Disabled,
                "insecure" => PodMode::Insecure,
                "verified" => PodMode::Verified,
                _ => return Err(pods.error("is not disabled, insecure or verified")),
            },
            namespaces: self.namespaces(fixture)?,
            endpoint_names: match self.flag_or("endpoint_pod_names", false)? {
                true => EndpointNames::Pod,
                false => EndpointNames::Address,
            },
            empty_services: match self.flag_or("ignore_empty_service", false)? {
                true => EmptyServices::Hidden,
                false => EmptyServices::Shown,
            },
            fallthrough: self.get("fallthrough")?.each(top)?,
            local_ips: self.get("local_ips")?.each(address)?,
        })
    }

    /// The visible namespaces: the named ones, or those with the labels.
    fn namespaces(&self, fixture: &Field<'_>) -> Result<Option<BTreeSet<Name>>, CaseError> {
        let named = self.get("namespaces")?.names()?;
        if !named.is_empty() {
            return Ok(Some(named.into_iter().collect()));
        }
        let labels = self.get("namespace_labels")?.labels()?;
        if labels.is_empty() {
            return Ok(None);
        }
        let mut shown = BTreeSet::new();
        for row in fixture.get("namespaces")?.list()? {
            if row.value().is_object() && labels.selects(&row.get("labels")?.labels()?) {
                shown.insert(namespace_name(&row)?);
            }
        }
        Ok(Some(shown))
    }
}

fn namespace_name(row: &Field<'_>) -> Result<Name, CaseError> {
    let name = if row.value().is_object() { row.get("name")? } else { row.clone() };
    Ok(Name::from(name.text()?))
}

/// The cluster of a file. Pods are known by their PodLocators.
pub(super) fn world(fixture: &Field<'_>, config: &Settings<'_>) -> Result<World, CaseError> {
    let mut changes = Vec::new();
    for row in fixture.get("namespaces")?.list()? {
        let name = namespace_name(&row)?;
        changes.push(Change::put(Namespace { name, traffic_distribution: None }));
    }
    for row in fixture.get("services")?.list()? {
        changes.push(Change::put(service(&row)?));
    }
    if !config.flag_or("noendpoints", false)? {
        for row in fixture.get("endpoint_slices")?.list()? {
            changes.push(Change::put(slice(&row)?));
        }
    }
    for row in fixture.get("pods")?.list()? {
        changes.push(Change::put(locator(&row)?));
    }
    let mut world = World::new(world::Settings::default());
    world.apply_all(changes);
    Ok(world)
}

fn service(row: &Field<'_>) -> Result<Service, CaseError> {
    let key = ServiceKey::new(row.get("namespace")?.text()?, row.get("name")?.text()?);
    Ok(Service {
        service_type: service_type(&row.get("type")?)?,
        external_name: row.get("external_name")?.name()?,
        ports: service_ports(&row.get("ports")?)?,
        cluster_ips: cluster_ips(row)?,
        publish_not_ready_addresses: row.get("publish_not_ready_addresses")?.flag()?,
        ..Service::new(key)
    })
}

fn slice(row: &Field<'_>) -> Result<Slice, CaseError> {
    let service = row.get("service")?.text()?;
    let (namespace, name) = (row.get("namespace")?.text()?, row.get("name")?.text()?);
    let address_type = AddressType::parse(row.get("address_type")?.text()?);
    Ok(Slice {
        labels: [(well_known::SERVICE_NAME, service)].into_iter().collect(),
        ports: slice_ports(&row.get("ports")?)?,
        endpoints: row.get("endpoints")?.each(endpoint)?,
        ..Slice::new(namespace, name, address_type)
    })
}

fn endpoint(row: &Field<'_>) -> Result<Endpoint, CaseError> {
    let target = row.get("target_ref")?.name()?;
    let none = || Name::from("");
    Ok(Endpoint {
        addresses: row.get("addresses")?.each(address)?,
        conditions: conditions(row)?,
        hostname: row.get("hostname")?.name()?,
        node: row.get("node_name")?.name()?,
        zone: row.get("zone")?.name()?,
        target: target.map(|name| PodRef { namespace: none(), name, uid: none() }),
        hints: None,
    })
}

/// The PodLocator of a Pod; a Pod in a terminal or unknown phase has no address.
fn locator(row: &Field<'_>) -> Result<Locator, CaseError> {
    let mut ips = row.get("pod_ips")?.list()?;
    if ips.is_empty() {
        ips.extend(row.get("pod_ip")?.optional());
    }
    let done = matches!(row.get("phase")?.text_or("Running")?, "Succeeded" | "Failed" | "Unknown");
    if done {
        ips.clear();
    }
    let key = PodKey::new(row.get("namespace")?.text()?, row.get("name")?.text()?);
    let ips = ips.iter().map(address).collect::<Result<Addresses, _>>()?;
    let owner = Some(key.name.clone());
    Ok(Locator { ips, owner, ..Locator::new(key) })
}
