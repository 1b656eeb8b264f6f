//! Metadata of an object: its UID and its version. The core does not need it. Writers need it, so
//! that they do not overwrite changes that they have not read.

use std::cmp::Ordering;

use jiff::Timestamp;
use nearhop_core::{Condition, ConditionStatus, Name};

use crate::field::{Field, List};
use crate::wire;

/// `metadata.resourceVersion`.
///
/// A decimal number that grows with every write of its kind. Kubernetes guarantees this since 1.35
/// (KEP-5504), and all earlier servers with etcd behave this way. Other values cannot be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(Name);

impl Version {
    /// The text from the server.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        Self(Name::from(text))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let decimal = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let (a, b) = (self.0.trim_start_matches('0'), other.0.trim_start_matches('0'));
        let ordered = decimal(&self.0) && decimal(&other.0);
        ordered.then(|| a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
    }
}

/// Metadata that the server sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// `metadata.uid`, which changes if the object is created again.
    pub uid: Name,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `metadata.generation`, 0 if the kind has none.
    pub generation: i64,
    /// `status.conditions` of a Service; empty for other kinds.
    pub conditions: Vec<Condition>,
}

impl Meta {
    /// Reads the metadata of an object of any kind.
    pub(crate) fn of(metadata: &Field<wire::Metadata>) -> Self {
        let metadata = match metadata {
            Field::Read(metadata) => metadata,
            _ => &wire::Metadata::default(),
        };
        Self {
            uid: text(&metadata.uid),
            version: Version(text(&metadata.resource_version)),
            generation: number(&metadata.generation),
            conditions: Vec::new(),
        }
    }

    /// Reads the metadata and conditions of a Service from the API server's reply.
    pub fn of_service_reply(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(|service| Self::of_service(&service))
    }

    /// Reads the metadata and conditions of a Service.
    pub(crate) fn of_service(service: &wire::Service) -> Self {
        let mut meta = Self::of(&service.metadata);
        if let Field::Read(status) = &service.status {
            meta.conditions = conditions(&status.conditions);
        }
        meta
    }
}

/// Reads the conditions. An unreadable condition is not from nearhop and is ignored.
fn conditions(list: &Field<List<wire::ServiceCondition>>) -> Vec<Condition> {
    let Field::Read(list) = list else { return Vec::new() };
    let read = |condition: &Field<wire::ServiceCondition>| {
        let Field::Read(wire) = condition else { return None };
        Some(Condition {
            kind: text(&wire.r#type),
            status: ConditionStatus::parse(&text(&wire.status))?,
            reason: text(&wire.reason),
            message: text(&wire.message),
            observed_generation: number(&wire.observed_generation),
            since: text(&wire.last_transition_time).parse::<Timestamp>().ok(),
        })
    };
    list.iter().filter_map(read).collect()
}

fn text(field: &Field<Name>) -> Name {
    match field {
        Field::Read(text) => text.clone(),
        _ => Name::from(""),
    }
}

fn number(field: &Field<i64>) -> i64 {
    match field {
        Field::Read(number) => *number,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_numbers() {
        let order = |a: &str, b: &str| Version::from(a).partial_cmp(&Version::from(b));
        assert_eq!(order("10", "9"), Some(Ordering::Greater));
        assert_eq!(order("9", "10"), Some(Ordering::Less));
        assert_eq!(order("10", "10"), Some(Ordering::Equal));
        assert_eq!(order("18446744073709551617", "18446744073709551616"), Some(Ordering::Greater));
        assert_eq!(Version::from("abc"), Version::from("abc"));
        assert_eq!(order("abd", "abc"), None, "a version that is not a number is never later");
        assert_eq!(order("", "1"), None);
    }

    #[test]
    fn conditions_of_a_service_are_read() {
        let service: wire::Service = serde_json::from_str(
            r#"{"metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"7","generation":3},
                "status":{"conditions":[
                  {"type":"A","status":"True","reason":"R","message":"m","observedGeneration":2,
                   "lastTransitionTime":"2026-01-01T00:00:00Z"},
                  {"type":"B","status":"Perhaps"}, 7]}}"#,
        )
        .unwrap();
        let meta = Meta::of_service(&service);
        assert_eq!((&*meta.uid, meta.version.as_str(), meta.generation), ("u", "7", 3));
        assert_eq!(meta.conditions.len(), 1);
        assert_eq!(meta.conditions[0].since, "2026-01-01T00:00:00Z".parse().ok());
    }
}
