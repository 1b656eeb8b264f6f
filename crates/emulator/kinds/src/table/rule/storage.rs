//! Cells of volumes, claims, classes and drivers.

use serde_json::Value;

use super::{Rules, or};
use crate::table::column::{dig, join, list, text};

pub(super) const RULES: Rules = &[
    ("phase", |object, _| match dig(object, "metadata.deletionTimestamp") {
        Value::Null => text(object, "status.phase").into(),
        _ => "Terminating".into(),
    }),
    ("volume-modes", |object, _| modes(list(object, "spec.accessModes")).into()),
    ("volume-claim", |object, _| match dig(object, "spec.claimRef") {
        Value::Null => "".into(),
        claim => format!("{}/{}", text(claim, "namespace"), text(claim, "name")).into(),
    }),
    ("storage-class", |object, _| storage_class(object).into()),
    ("claim-capacity", |claim, _| match text(claim, "spec.volumeName") {
        "" => "".into(),
        _ => or(text(claim, "status.capacity.storage"), "0").into(),
    }),
    ("claim-modes", |claim, _| match text(claim, "spec.volumeName") {
        "" => "".into(),
        _ => modes(list(claim, "status.accessModes")).into(),
    }),
    ("default-class", |object, _| default_class(object).into()),
    ("csi-tokens", |object, _| match dig(object, "spec.tokenRequests").as_array() {
        Some(requests) => join(requests, Some("audience")).into(),
        None => "<unset>".into(),
    }),
    ("csi-modes", |object, _| {
        or(&join(list(object, "spec.volumeLifecycleModes"), None), "<none>").into()
    }),
    ("claim-state", |claim, _| claim_state(claim).into()),
];

/// Short and in a fixed order, each once.
fn modes(modes: &[Value]) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let given = short.iter().filter(|(long, _)| modes.iter().any(|mode| mode == long));
    given.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// An annotation is older than the field, and wins.
fn storage_class(object: &Value) -> &str {
    let annotation =
        dig(object, "metadata.annotations").get("volume.beta.kubernetes.io/storage-class");
    let annotation = annotation.and_then(Value::as_str);
    annotation.unwrap_or_else(|| text(object, "spec.storageClassName"))
}

fn default_class(object: &Value) -> String {
    let annotations = dig(object, "metadata.annotations");
    let keys = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
        "ingressclass.kubernetes.io/is-default-class",
    ];
    let default = keys.iter().any(|key| annotations.get(key).is_some_and(|value| value == "true"));
    let name = text(object, "metadata.name");
    if default { format!("{name} (default)") } else { name.to_owned() }
}

fn claim_state(claim: &Value) -> String {
    let deleted = !dig(claim, "metadata.deletionTimestamp").is_null();
    let allocated = !dig(claim, "status.allocation").is_null();
    let reserved = allocated && !list(claim, "status.reservedFor").is_empty();
    let states = [
        (deleted, "deleted"),
        (!allocated && !deleted, "pending"),
        (allocated, "allocated"),
        (reserved, "reserved"),
    ];
    states.iter().filter(|(is, _)| *is).map(|(_, state)| *state).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn access_modes_are_abbreviated_and_sorted() {
        assert_eq!(
            modes(&[json!("ReadWriteMany"), json!("ReadWriteOnce"), json!("ReadWriteMany")]),
            "RWO,RWX"
        );
    }

    #[test]
    fn the_default_class_is_marked() {
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let class = json!({"metadata": {"name": "fast", "annotations": annotations}});
        assert_eq!(default_class(&class), "fast (default)");
        assert_eq!(default_class(&json!({"metadata": {"name": "slow"}})), "slow");
    }

    #[test]
    fn claim_states_are_printed() {
        assert_eq!(claim_state(&json!({})), "pending");
        let status = json!({"allocation": {}, "reservedFor": [{}]});
        assert_eq!(claim_state(&json!({"status": status})), "allocated,reserved");
        let metadata = json!({"deletionTimestamp": "2026-11-15T20:30:00Z"});
        assert_eq!(claim_state(&json!({"metadata": metadata})), "deleted");
    }
}
