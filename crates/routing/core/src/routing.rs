//! The annotation `nearhop.dev/routing` on an EndpointSlice: routing that standard hints cannot
//! express.
//!
//! The value is a small versioned JSON object: either ordered topology keys with the label values
//! of the nodes in this slice (KEP-536), or a table of zone-to-zone weights in millionths
//! (Balanced). All slices of one Service carry the same revision. A node that finds two revisions
//! falls back to the hints; this is the safe transition of KEP-2433.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::Name;

/// The annotation's key.
pub const ANNOTATION: &str = "nearhop.dev/routing";

/// The maximum size that nearhop writes: all annotations of an object share 256 KiB.
pub const MAX_BYTES: usize = 192 * 1024;

/// Maximum number of topology keys.
pub const MAX_KEYS: usize = 16;

/// The last key of a soft list: any endpoint is allowed.
pub const ANY: &str = "*";

/// The content of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Ordered topology keys.
    Keys(KeyRouting),
    /// Zone-to-zone weights, the same in every slice of the Service.
    Weights(Arc<WeightTable>),
}

/// Ordered keys, and the label values of this slice's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRouting {
    /// Label keys in order of preference, without the final `*`.
    pub keys: Vec<Name>,
    /// Whether a final `*` allows any endpoint.
    pub soft: bool,
    /// For each node of this slice its values of `keys`, in the same order as `keys`.
    pub nodes: BTreeMap<Name, Vec<Option<Name>>>,
}

/// The sum of the weights of a client zone: with this value, one endpoint among a thousand still
/// gets its share with an error of at most one in a thousand.
pub const WHOLE: u32 = 1_000_000;

/// Client zone to endpoint zone to millionths of the client zone's connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct WeightTable(pub BTreeMap<Name, BTreeMap<Name, u32>>);

/// The annotation of one slice, after parsing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum SliceRouting {
    /// The slice has no annotation.
    #[default]
    Absent,
    /// The annotation is valid.
    Valid(Arc<Routing>),
    /// The annotation is invalid.
    Broken(RoutingError),
}

impl SliceRouting {
    /// Parses an annotation's text, if there is one.
    pub fn read(text: Option<&str>) -> Self {
        match text.map(parse) {
            None => Self::Absent,
            Some(Ok(routing)) => Self::Valid(Arc::new(routing)),
            Some(Err(error)) => Self::Broken(error),
        }
    }
}

/// Why an annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingError {
    /// The text is not JSON of this structure.
    #[error("not readable: {0}")]
    Json(String),
    /// A newer version of nearhop wrote it.
    #[error("version {0} is not supported; this build supports version 1")]
    Version(u32),
    /// It has neither keys nor weights, or both.
    #[error("must have exactly one of `keys` and `weights`")]
    Kind,
    /// The keys are not valid by KEP-536.
    #[error("keys: {0}")]
    Keys(String),
    /// The number of a node's values differs from the number of keys.
    #[error("nodes[{0}]: must have one value for each key")]
    NodeValues(String),
    /// The weights of a row do not have the required sum.
    #[error("weights[{0}]: adds up to {1}, not {WHOLE}")]
    RowSum(String, u64),
    /// It is longer than an annotation may be.
    #[error("{0} bytes, more than the {MAX_BYTES} that are read")]
    TooLong(usize),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<BTreeMap<String, Vec<Option<String>>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<BTreeMap<String, BTreeMap<String, u32>>>,
}

/// Only the version, to distinguish a newer format from an invalid value.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

/// Parses an annotation's text.
pub fn parse(text: &str) -> Result<Routing, RoutingError> {
    if text.len() > MAX_BYTES {
        return Err(RoutingError::TooLong(text.len()));
    }
    let json = |error: serde_json::Error| RoutingError::Json(error.to_string());
    let Version { v } = serde_json::from_str(text).map_err(json)?;
    if v != 1 {
        return Err(RoutingError::Version(v));
    }
    let wire: Wire = serde_json::from_str(text).map_err(json)?;
    match (wire.keys, wire.weights) {
        (Some(keys), None) => parse_keys(keys, wire.nodes.unwrap_or_default()).map(Routing::Keys),
        (None, Some(weights)) if wire.nodes.is_none() => {
            parse_weights(weights).map(|table| Routing::Weights(Arc::new(table)))
        }
        _ => Err(RoutingError::Kind),
    }
}

fn parse_keys(
    keys: Vec<String>,
    nodes: BTreeMap<String, Vec<Option<String>>>,
) -> Result<KeyRouting, RoutingError> {
    let keys: Vec<Name> = keys.into_iter().map(Name::from).collect();
    let (keys, soft) = split_keys(&keys).map_err(RoutingError::Keys)?;
    let mut read = BTreeMap::new();
    for (node, values) in nodes {
        if values.len() != keys.len() {
            return Err(RoutingError::NodeValues(node));
        }
        read.insert(Name::from(node), values.into_iter().map(|v| v.map(Name::from)).collect());
    }
    Ok(KeyRouting { keys, soft, nodes: read })
}

fn parse_weights(
    rows: BTreeMap<String, BTreeMap<String, u32>>,
) -> Result<WeightTable, RoutingError> {
    let mut table = BTreeMap::new();
    for (from, row) in rows {
        let sum: u64 = row.values().map(|weight| u64::from(*weight)).sum();
        if sum != u64::from(WHOLE) {
            return Err(RoutingError::RowSum(from, sum));
        }
        let row = row.into_iter().map(|(to, weight)| (Name::from(to), weight)).collect();
        table.insert(Name::from(from), row);
    }
    Ok(WeightTable(table))
}

/// Validates a list of topology keys (KEP-536 "Service API changes") and removes a final `*`.
pub(crate) fn split_keys(keys: &[Name]) -> Result<(Vec<Name>, bool), String> {
    if keys.is_empty() {
        return Err("empty: give at least one key".into());
    }
    if keys.len() > MAX_KEYS {
        return Err(format!("{} keys, at most {MAX_KEYS} are allowed", keys.len()));
    }
    let mut seen: Vec<Name> = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        let quoted = crate::problem::quote(key);
        if *key == ANY && i + 1 != keys.len() {
            return Err(format!("\"*\" at position {i} must be last"));
        }
        if *key != ANY && !is_label_key(key) {
            return Err(format!("{quoted} is not a label key"));
        }
        if seen.contains(key) {
            return Err(format!("{quoted} occurs twice"));
        }
        seen.push(key.clone());
    }
    let soft = seen.pop_if(|key| *key == ANY).is_some();
    Ok((seen, soft))
}

/// Whether a text is a qualified name of Kubernetes: an optional DNS subdomain and a slash, then a
/// short name.
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && crate::model::is_zone_name(name)
}

fn is_dns_subdomain(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().copied().is_some_and(alphanumeric)
            && bytes.last().copied().is_some_and(alphanumeric)
            && bytes.iter().all(|c| alphanumeric(*c) || *c == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

impl Routing {
    /// Whether two slices carry the same revision of the Service's routing. The nodes of topology
    /// keys differ from slice to slice.
    pub fn same_revision(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Keys(a), Self::Keys(b)) => (&a.keys, a.soft) == (&b.keys, b.soft),
            (Self::Weights(a), Self::Weights(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for Routing {
    /// The annotation's text. It is sorted, so that equal values have equal text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wire = match self {
            Self::Keys(routing) => {
                let any = routing.soft.then(|| ANY.to_owned());
                Wire {
                    v: 1,
                    keys: Some(routing.keys.iter().map(Name::to_string).chain(any).collect()),
                    nodes: Some(
                        (routing.nodes.iter())
                            .map(|(node, values)| {
                                let values = values.iter();
                                let values = values.map(|v| v.as_ref().map(Name::to_string));
                                (node.to_string(), values.collect())
                            })
                            .collect(),
                    ),
                    weights: None,
                }
            }
            Self::Weights(table) => {
                let row = |row: &BTreeMap<Name, u32>| {
                    row.iter().map(|(to, weight)| (to.to_string(), *weight)).collect()
                };
                let rows = table.0.iter().map(|(from, to)| (from.to_string(), row(to))).collect();
                Wire { v: 1, keys: None, nodes: None, weights: Some(rows) }
            }
        };
        f.write_str(&serde_json::to_string(&wire).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_round_trip() {
        for text in [
            r#"{"v":1,"keys":["kubernetes.io/hostname","rack","*"],"nodes":{"n1":["n1",null]}}"#,
            r#"{"v":1,"keys":["topology.kubernetes.io/zone"],"nodes":{}}"#,
            r#"{"v":1,"weights":{"a":{"a":1000000},"b":{"a":250000,"b":750000}}}"#,
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_describe_the_invalid_field() {
        let error = |text| parse(text).unwrap_err().to_string();
        assert!(error("{").starts_with("not readable"));
        assert_eq!(
            error(r#"{"v":2,"new":1}"#),
            "version 2 is not supported; this build supports version 1"
        );
        assert_eq!(error(r#"{"v":1}"#), "must have exactly one of `keys` and `weights`");
        assert_eq!(error(r#"{"v":1,"keys":["*","a"]}"#), r#"keys: "*" at position 0 must be last"#);
        assert_eq!(error(r#"{"v":1,"keys":["a","a"]}"#), r#"keys: "a" occurs twice"#);
        assert_eq!(error(r#"{"v":1,"keys":["a b"]}"#), r#"keys: "a b" is not a label key"#);
        assert_eq!(error(r#"{"v":1,"keys":[]}"#), "keys: empty: give at least one key");
        assert_eq!(
            error(r#"{"v":1,"keys":["a"],"nodes":{"n":[]}}"#),
            "nodes[n]: must have one value for each key"
        );
        assert_eq!(
            error(r#"{"v":1,"weights":{"a":{"b":999999}}}"#),
            "weights[a]: adds up to 999999, not 1000000"
        );
        assert!(error(&format!("{{\"v\":1{}}}", " ".repeat(MAX_BYTES))).contains("more than the"));
    }

    #[test]
    fn more_than_sixteen_keys_are_rejected() {
        let keys: Vec<Name> = (0..17).map(|i| Name::from(format!("k{i}"))).collect();
        assert_eq!(split_keys(&keys).unwrap_err(), "17 keys, at most 16 are allowed");
        assert!(split_keys(&keys[..16]).is_ok());
    }
}
