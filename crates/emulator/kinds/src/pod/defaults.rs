//! Defaults of pods and of templates. Absent and empty are the same, as in Go.

use serde_json::{Map, Value, json};

use crate::json::{
    at, at_mut, fill, fill_absent, fill_number, int, is_true, list, list_mut, make, object, text,
};

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

pub(crate) fn default(pod: &mut Value) {
    let host_network = is_true(pod, &["spec", "hostNetwork"]);
    let spec = make(pod, &["spec"]);
    default_spec(spec);
    fill(spec, "enableServiceLinks", true);
    for part in ["containers", "initContainers"] {
        for container in list_mut(spec, &[part]) {
            requests_from_limits(container);
            if host_network {
                host_ports(container);
            }
        }
    }
    mirror_pod_ips(pod);
}

/// Sets the defaults of a template at a path of the object.
pub(crate) fn default_template(owner: &mut Value, path: &[&str]) {
    let template = make(owner, path);
    object(template).entry("metadata").or_insert_with(|| json!({}));
    default_spec(make(template, &["spec"]));
}

fn default_spec(spec: &mut Value) {
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "restartPolicy", "Always");
    fill(spec, "securityContext", Map::new());
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "schedulerName", "default-scheduler");
    service_account(spec);
    for volume in list_mut(spec, &["volumes"]) {
        default_volume(volume);
    }
    for part in CONTAINERS {
        for container in list_mut(spec, &[part]) {
            default_container(container);
        }
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`.
fn service_account(spec: &mut Value) {
    let (old, new) = (text(spec, &["serviceAccount"]), text(spec, &["serviceAccountName"]));
    let name = if new.is_empty() { old } else { new }.to_owned();
    if !name.is_empty() {
        fill(spec, "serviceAccountName", name.clone());
        object(spec).insert("serviceAccount".to_owned(), json!(name));
    }
}

fn default_container(container: &mut Value) {
    let image = text(container, &["image"]);
    let policy = pull_policy(image);
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    object(container).entry("resources").or_insert_with(|| json!({}));
    for port in list_mut(container, &["ports"]) {
        fill(port, "protocol", "TCP");
    }
    for variable in list_mut(container, &["env"]) {
        if let Some(field) = at_mut(variable, &["valueFrom", "fieldRef"]) {
            fill(field, "apiVersion", "v1");
        }
    }
    for probe in PROBES {
        if let Some(probe) = at_mut(container, &[probe]) {
            default_probe(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(http) = at_mut(container, &["lifecycle", hook, "httpGet"]) {
            default_http(http);
        }
    }
}

fn default_probe(probe: &mut Value) {
    for (key, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        fill_number(probe, key, value);
    }
    if let Some(http) = at_mut(probe, &["httpGet"]) {
        default_http(http);
    }
    if let Some(grpc) = at_mut(probe, &["grpc"]) {
        fill_absent(grpc, "service", "");
    }
}

fn default_http(http: &mut Value) {
    fill(http, "path", "/");
    fill(http, "scheme", "HTTP");
}

fn default_volume(volume: &mut Value) {
    let sourceless = volume
        .as_object()
        .is_none_or(|volume| volume.iter().all(|(key, source)| key == "name" || source.is_null()));
    if sourceless {
        object(volume).insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = at_mut(volume, &[source]) {
            fill(source, "defaultMode", 420);
        }
    }
    if let Some(path) = at_mut(volume, &["hostPath"]) {
        fill_absent(path, "type", "");
    }
    for source in list_mut(volume, &["projected", "sources"]) {
        if let Some(token) = at_mut(source, &["serviceAccountToken"]) {
            fill(token, "expirationSeconds", 3600);
        }
        field_refs(source, &["downwardAPI", "items"]);
    }
    field_refs(volume, &["downwardAPI", "items"]);
    if let Some(image) = at_mut(volume, &["image"]) {
        let policy = pull_policy(text(image, &["reference"]));
        fill(image, "pullPolicy", policy);
    }
}

fn field_refs(holder: &mut Value, path: &[&str]) {
    for item in list_mut(holder, path) {
        if let Some(field) = at_mut(item, &["fieldRef"]) {
            fill(field, "apiVersion", "v1");
        }
    }
}

/// Requests default to limits.
fn requests_from_limits(container: &mut Value) {
    let Some(Value::Object(limits)) = at(container, &["resources", "limits"]).cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let requests = object(make(container, &["resources", "requests"]));
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// In the host network, hostPort defaults to containerPort.
fn host_ports(container: &mut Value) {
    for port in list_mut(container, &["ports"]) {
        if let Some(number) = int(port, &["containerPort"]).filter(|number| *number != 0) {
            fill_number(port, "hostPort", number);
        }
    }
}

/// `podIP` is the first of `podIPs`, and wins if they differ.
fn mirror_pod_ips(pod: &mut Value) {
    let one = text(pod, &["status", "podIP"]);
    let first = list(pod, &["status", "podIPs"]).first().map(|first| text(first, &["ip"]));
    match first {
        Some(first) if one.is_empty() => {
            let first = json!(first);
            *make(pod, &["status", "podIP"]) = first;
        }
        first if !one.is_empty() && first != Some(one) => {
            let all = json!([{"ip": one}]);
            *make(pod, &["status", "podIPs"]) = all;
        }
        _ => {}
    }
}

/// Always for no tag or `latest`; an invalid image counts as tagged.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').unwrap_or((image, ""));
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let path = match name.split_once('/') {
        Some((domain, path)) if domain.contains(['.', ':']) || domain == "localhost" => path,
        _ => name,
    };
    let repository = path.rsplit_once(':').map_or(path, |(repository, _)| repository);
    let readable = !repository.is_empty()
        && !repository.contains(|c: char| c.is_ascii_uppercase() || c.is_whitespace());
    let latest = match tag {
        Some(tag) => tag == "latest",
        None => digest.is_empty(),
    };
    if readable && latest { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_tags_are_parsed() {
        for (image, policy) in [
            ("x", "Always"),
            ("x:latest", "Always"),
            ("host:5000/x", "Always"),
            ("host:5000/x:1", "IfNotPresent"),
            ("x@sha256:00", "IfNotPresent"),
            ("x:latest@sha256:00", "Always"),
            ("", "IfNotPresent"),
            ("Not Valid", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn a_volume_without_a_source_becomes_an_empty_dir() {
        let mut pod = json!({"spec": {"volumes": [{"name": "v"}]}});
        default(&mut pod);
        assert_eq!(pod["spec"]["volumes"], json!([{"name": "v", "emptyDir": {}}]));
    }

    #[test]
    fn host_network_ports_get_a_host_port() {
        let mut pod = json!({"spec": {"hostNetwork": true, "containers": [
            {"name": "c", "ports": [{"containerPort": 80}]}]}});
        default(&mut pod);
        assert_eq!(pod["spec"]["containers"][0]["ports"][0]["hostPort"], 80);
    }
}
