//! Ports: from a Service's targetPort to the number on a Pod.

use nearhop_core::model::{Pod, Service, TargetPort};
use nearhop_core::slice::{endpoint_ports, find_port};
use nearhop_core::{PodKey, ServiceKey};
use serde_json::{Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{PortNumbers, container_ports, port_value, protocol, service_ports};
use crate::read::CaseError;

/// `find_port`: one targetPort, looked up in one Pod.
pub(super) fn find(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut numbers = PortNumbers::of(&case.row);
    let wanted = case.row.get("target_port")?;
    let target = match wanted.value() {
        Value::String(name) => TargetPort::Named(name.as_str().into()),
        _ => TargetPort::Number(numbers.encode(&wanted)?),
    };
    let mut ports = Vec::new();
    for container in case.row.get("containers")?.list()? {
        ports.extend(container_ports(&container.get("ports")?, &mut numbers)?);
    }
    // Sidecars are the only init containers that keep running; they come last.
    for container in case.row.get("init_containers")?.list()? {
        let found = container_ports(&container.get("ports")?, &mut numbers)?;
        if container.get("restartPolicy")?.text_or("")? == "Always" {
            ports.extend(found);
        }
    }
    let found = find_port(&target, protocol(&case.row.get("service_protocol")?)?, &ports);
    let number = found.map_or(0, |port| numbers.decode(port));
    check.fields(&case.row, |key| match key {
        "port" => Some((Rule::Exact, json!(number))),
        "found" => Some((Rule::Exact, json!(found.is_some()))),
        _ => None,
    })
}

/// `endpoint_ports`: all ports of a Service for one Pod.
pub(super) fn endpoint(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut numbers = PortNumbers::of(&case.row);
    let ports = service_ports(&case.row.get("service_ports")?)?;
    let mut container = Vec::new();
    for kind in ["containers", "sidecars"] {
        for one in case.row.get("pod")?.get(kind)?.list()? {
            container.extend(container_ports(&one, &mut numbers)?);
        }
    }
    let service = Service { ports, ..Service::new(ServiceKey::new("test", "foo")) };
    let pod = Pod { ports: container.into(), ..Pod::new(PodKey::new("test", "pod")) };
    let found = endpoint_ports(&service, &pod);
    let found: Vec<Value> =
        found.iter().map(|port| port_value(port, |number| numbers.decode(number))).collect();
    check.value(&case.row, Rule::Bag(&Rule::Sparse), json!(found))
}
