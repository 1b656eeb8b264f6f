//! Writes objects by server-side apply, as the field manager `nearhop-lab`.
//!
//! A lab with `--data-dir` finds objects that it wrote before. A field that another client has changed
//! since then keeps its value, also if that client removed it; the result names these fields. A
//! removed field is known from the objects of the earlier start: it was applied then, and is gone.

use kube::core::response::StatusCause;
use nearhop_runtime::client::ApiFailure;
use serde_json::Value;

use crate::cluster::{Cluster, is_ready, name_of, none_missing, wait_for};
use crate::config::ConfigFile;
use crate::{LabError, objects};

/// How many fields of one object may belong to other clients: each takes one more request at most.
const MAX_ROUNDS: usize = 32;

/// The result of a write.
pub(crate) enum Outcome {
    /// With these warnings of the API server.
    Applied(Vec<String>),
    /// Other clients own these fields.
    Conflicts(Vec<StatusCause>),
}

/// The fields that other clients have changed, in words.
pub(crate) type Kept = Vec<String>;

/// One applied object.
struct Written {
    kept: Kept,
    /// Of the API server.
    warnings: Vec<String>,
}

/// Applies objects in order. `earlier` are the objects of the last start.
pub(crate) async fn apply_all(
    cluster: &Cluster,
    objects: &[Value],
    earlier: &[Value],
) -> Result<Kept, LabError> {
    apply_each(cluster, objects, earlier, |_, written| Ok(written?.kept)).await
}

/// The same for the objects of a file; errors and warnings of the API server get the place of their
/// object.
pub async fn apply_config(
    cluster: &Cluster,
    config: &ConfigFile,
    objects: &[Value],
    earlier: &[Value],
) -> Result<Kept, LabError> {
    let place = |object: &Value, written: Result<Written, LabError>| match written {
        Ok(Written { mut kept, warnings }) => {
            kept.extend(warnings.iter().map(|text| config.warning_about(object, text)));
            Ok(kept)
        }
        Err(LabError::Api(ApiFailure::Rejected { message, .. })) => {
            Err(config.error_about(object, &message))
        }
        Err(error) => Err(error),
    };
    apply_each(cluster, objects, earlier, place).await
}

async fn apply_each(
    cluster: &Cluster,
    objects: &[Value],
    earlier: &[Value],
    report: impl Fn(&Value, Result<Written, LabError>) -> Result<Kept, LabError>,
) -> Result<Kept, LabError> {
    let mut kept = Kept::new();
    for object in objects {
        let before = earlier.iter().find(|one| is_same(one, object));
        kept.extend(report(object, apply(cluster, object, before).await)?);
    }
    Ok(kept)
}

/// Waits until the Pods among the objects are ready.
pub(crate) async fn wait_for_pods(cluster: &Cluster, objects: &[Value]) -> Result<(), LabError> {
    let wanted = |object: &&Value| object["kind"] == "Pod" && objects::wants_ready(object);
    let pods: Vec<&Value> = objects.iter().filter(wanted).collect();
    wait_for("Pods", || async {
        let found = cluster.list("/api/v1/pods").await?;
        let ready = |pod: &Value| found.iter().any(|one| is_same(one, pod) && is_ready(one));
        let missing = pods.iter().filter(|pod| !ready(pod));
        Ok(none_missing(missing.map(|pod| path_of(pod)).collect()))
    })
    .await
}

/// Whether both are the same object; items of a list have no kind.
fn is_same(a: &Value, b: &Value) -> bool {
    let kind = |one: &Value| one["kind"].as_str().map(str::to_owned);
    let kinds = (kind(a), kind(b));
    name_of(a) == name_of(b)
        && a["metadata"]["namespace"] == b["metadata"]["namespace"]
        && (kinds.0 == kinds.1 || kinds.0.is_none())
}

async fn apply(
    cluster: &Cluster,
    object: &Value,
    before: Option<&Value>,
) -> Result<Written, LabError> {
    let path = format!("{}/{}", collection(object), name_of(object));
    let mut wanted = without_empty(object);
    let mut kept = Kept::new();
    if let Some(before) = before {
        let live = match cluster.get(&path).await {
            Err(LabError::Api(ApiFailure::NotFound { .. })) => None,
            live => Some(live?),
        };
        let before = without_empty(before);
        let fields = live.map_or(Vec::new(), |live| removed(&before, &wanted, &live, ""));
        for field in fields {
            if take(&mut wanted, &field) {
                kept.push(format!(
                    "{}: {field} was removed by another client; left out",
                    title(object)
                ));
            }
        }
    }
    for _ in 0..MAX_ROUNDS {
        let causes = match cluster.apply(&path, &wanted).await? {
            Outcome::Applied(warnings) => return Ok(Written { kept, warnings }),
            Outcome::Conflicts(causes) => causes,
        };
        let mut is_smaller = false;
        for StatusCause { message, field, .. } in causes {
            if take(&mut wanted, &field) {
                is_smaller = true;
                let by = manager_of(&message);
                kept.push(format!("{}: {field} was changed by {by}; kept", title(object)));
            }
        }
        if !is_smaller {
            break;
        }
    }
    Err(LabError::NotReady(format!(
        "{}: other clients own fields that cannot be left out. Cure: {}",
        title(object),
        deletion(object)
    )))
}

/// The command that deletes an object: `kubectl delete service cart -n shop`.
fn deletion(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let namespace = object["metadata"]["namespace"].as_str();
    let flag = namespace.map_or(String::new(), |namespace| format!(" -n {namespace}"));
    format!("kubectl delete {kind} {}{flag}", name_of(object))
}

/// `Service shop/cart`.
fn title(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or_default(), path_of(object))
}

/// `shop/cart`, or the name only.
fn path_of(object: &Value) -> String {
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{}", name_of(object)),
        None => name_of(object).to_owned(),
    }
}

/// The manager in a message such as `conflict with "kubectl-patch" using v1`.
fn manager_of(message: &str) -> &str {
    message.split('"').nth(1).unwrap_or("another client")
}

/// The object without null, and without empty maps and lists of its metadata and spec: a
/// client owns what it applies.
fn without_empty(object: &Value) -> Value {
    let mut object = object.clone();
    remove_nulls(&mut object);
    for part in ["metadata", "spec"] {
        if let Some(Value::Object(fields)) = object.get_mut(part) {
            fields.retain(|_, value| {
                !(value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(serde_json::Map::is_empty))
            });
        }
    }
    object
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The fields that are the same in both configurations and missing in the live object. A server does
/// not return `false`, 0 or an empty text of a field that it omits when empty.
fn removed(before: &Value, wanted: &Value, live: &Value, path: &str) -> Vec<String> {
    let (Some(before), Some(wanted)) = (before.as_object(), wanted.as_object()) else {
        return Vec::new();
    };
    let mut fields = Vec::new();
    for (key, value) in wanted {
        let Some(old) = before.get(key) else { continue };
        let path = format!("{path}.{key}");
        match live.get(key) {
            Some(live) => fields.extend(removed(old, value, live, &path)),
            None if value.is_object() => fields.extend(removed(old, value, &Value::Null, &path)),
            None if old == value && !is_zero(value) => fields.push(path),
            None => {}
        }
    }
    fields
}

fn is_zero(value: &Value) -> bool {
    *value == Value::Bool(false) || value.as_f64() == Some(0.0) || value.as_str() == Some("")
}

/// Removes the field at a path such as `.spec.ports[port=80,protocol="TCP"].targetPort`. Keys may
/// contain dots. Returns whether it was there.
fn take(value: &mut Value, path: &str) -> bool {
    if let Some(rest) = path.strip_prefix('.') {
        let Value::Object(fields) = value else { return false };
        if fields.contains_key(rest) {
            return fields.remove(rest).is_some();
        }
        let parent = fields.iter_mut().find_map(|(key, value)| {
            let rest = rest.strip_prefix(key.as_str())?;
            (rest.starts_with(['.', '[']) && take(value, rest)).then(|| key.clone())
        });
        // An empty map would be applied as such.
        if let Some(parent) = &parent
            && fields[parent].as_object().is_some_and(serde_json::Map::is_empty)
        {
            fields.remove(parent);
        }
        return parent.is_some();
    }
    let Some((selector, rest)) = path.strip_prefix('[').and_then(|path| path.split_once(']'))
    else {
        return false;
    };
    let Value::Array(items) = value else { return false };
    let Some(at) = items.iter().position(|item| matches(item, selector)) else { return false };
    if rest.is_empty() {
        items.remove(at);
        return true;
    }
    take(&mut items[at], rest)
}

/// Whether an item of a list has the keys of `port=80,protocol="TCP"`.
fn matches(item: &Value, selector: &str) -> bool {
    selector.split(',').all(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or(("", pair));
        serde_json::from_str::<Value>(value).is_ok_and(|value| match key {
            "" => *item == value,
            key => item[key] == value,
        })
    })
}

/// The path of an object's collection. All kinds that the lab creates have regular plurals.
fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, plural) =
        (text(&object["apiVersion"]), text(&object["kind"]).to_lowercase() + "s");
    let root = if version.contains('/') { "apis" } else { "api" };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/{root}/{version}/{plural}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_taken_out_by_their_path() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c.d": "x", "a": "y"}},
            "spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 1}, {"port": 81}]},
        });
        for (path, pointer) in [
            (".metadata.annotations.a.b/c.d", "/metadata/annotations/a.b~1c.d"),
            (".metadata.annotations.a", "/metadata/annotations/a"),
            (".spec.ports[port=80,protocol=\"TCP\"].targetPort", "/spec/ports/0/targetPort"),
            (".spec.ports[port=81]", "/spec/ports/1"),
            (".spec.ports", "/spec/ports"),
        ] {
            let mut changed = object.clone();
            assert!(changed.pointer(pointer).is_some() && take(&mut changed, path), "{path}");
            assert!(changed.pointer(pointer).is_none(), "{path}: {changed}");
        }
        for absent in [".spec.type", ".spec.ports[port=82]", ".status", "spec", ""] {
            assert!(!take(&mut object.clone(), absent), "{absent}");
        }
    }

    #[test]
    fn a_field_that_was_applied_and_is_gone_was_removed() {
        let before = json!({"spec": {"a": 1, "b": 2, "c": {"d": 3}, "same": 5, "no": false}});
        let wanted =
            json!({"spec": {"a": 1, "b": 9, "c": {"d": 3}, "new": 4, "same": 5, "no": false}});
        let live = json!({"spec": {"same": 6, "c": {}}});
        // The file has another value for `b` now, and `new` only now.
        assert_eq!(removed(&before, &wanted, &live, ""), [".spec.a", ".spec.c.d"]);
    }

    #[test]
    fn nulls_and_empty_fields_are_not_applied() {
        let object = json!({
            "metadata": {"name": "x", "annotations": null, "labels": {}},
            "spec": {"externalIPs": [], "ports": [{"name": null, "port": 1}], "type": "ClusterIP"},
        });
        let wanted = json!({
            "metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}], "type": "ClusterIP"},
        });
        assert_eq!(without_empty(&object), wanted);
    }

    #[test]
    fn the_cure_names_the_command() {
        let service = json!({"kind": "Service", "metadata": {"name": "cart", "namespace": "shop"}});
        assert_eq!(title(&service), "Service shop/cart");
        assert_eq!(deletion(&service), "kubectl delete service cart -n shop");
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "shop"}});
        assert_eq!(deletion(&namespace), "kubectl delete namespace shop");
    }

    #[test]
    fn collections_follow_kind_and_api_version() {
        let path = |version: &str, kind: &str, namespace: Option<&str>| {
            let metadata = json!({"namespace": namespace});
            collection(&json!({"apiVersion": version, "kind": kind, "metadata": metadata}))
        };
        assert_eq!(path("v1", "Namespace", None), "/api/v1/namespaces");
        assert_eq!(path("v1", "Pod", Some("shop")), "/api/v1/namespaces/shop/pods");
        let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
        assert_eq!(path("discovery.k8s.io/v1", "EndpointSlice", Some("shop")), slices);
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(path("apiextensions.k8s.io/v1", "CustomResourceDefinition", None), definitions);
    }
}
