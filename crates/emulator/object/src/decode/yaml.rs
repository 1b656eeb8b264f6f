//! Parses YAML, and reports duplicate keys.
//!
//! It follows kube-apiserver: YAML 1.1 booleans (`y`, `on`, …) are booleans, only the first
//! document counts, and a text that is JSON is parsed as JSON. The expansion of aliases is limited:
//! otherwise a few lines could fill all memory.

use serde::de::{Deserialize, Deserializer};
use serde_json::Value;

use super::conform::whole_number;
use super::json::parse;
use super::{DecodeError, Parsed, parse_json};

/// The same limit as for JSON: all later code relies on it.
const MAX_DEPTH: usize = 128;
/// More nodes than an object of three megabytes has.
const MAX_NODES: usize = 1_000_000;
/// Much more than hand-written files need, and small enough to be safe.
const MAX_REPLAYED: usize = 100_000;

/// Parses the first document of a YAML text.
///
/// # Errors
/// The text is not YAML, or it is too deep or expands to too many values.
pub fn parse_yaml(bytes: &[u8]) -> Result<Parsed, DecodeError> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if matches!(first, Some(b'{' | b'['))
        && let Ok(parsed) = parse_json(bytes)
    {
        return Ok(parsed);
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| DecodeError(format!("yaml: invalid UTF-8: {error}")))?;
    let mut source = text.as_bytes();
    let mut documents = serde_saphyr::read_with_options::<_, Parsed>(&mut source, options());
    match documents.next() {
        Some(Ok(parsed)) => Ok(parsed),
        Some(Err(error)) => Err(DecodeError(format!("yaml: {error}"))),
        None => Ok(Parsed { value: Value::Null, duplicates: Vec::new() }),
    }
}

fn options() -> serde_saphyr::Options {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_nodes = MAX_NODES;
    let mut limits = serde_saphyr::options::AliasLimits::default();
    limits.max_total_replayed_events = MAX_REPLAYED;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.alias_limits = limits;
    options.duplicate_keys = serde_saphyr::options::DuplicateKeyPolicy::LastWins;
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut parsed = parse(deserializer)?;
        whole_numbers(&mut parsed.value);
        Ok(parsed)
    }
}

/// kube-apiserver first converts YAML to JSON, in which `80.0` becomes `80`.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(whole_number)
            {
                *value = Value::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        parse_yaml(text.as_bytes()).expect(text).value
    }

    #[test]
    fn yaml_is_parsed_like_kubernetes() {
        for (text, expected) in [
            ("a: 1\nb: [x, 2.5, null, ~]\n", json!({"a":1,"b":["x",2.5,null,null]})),
            ("name: y\nother: on\n", json!({"name":true,"other":true})),
            ("name: \"y\"\n", json!({"name":"y"})),
            ("1: a\ntrue: b\n", json!({"1":"a","true":"b"})),
            ("a: &x {k: v}\nb: *x\n", json!({"a":{"k":"v"},"b":{"k":"v"}})),
            ("a: 1\n---\na: 2\n", json!({"a":1})),
            ("---\na: 1\n", json!({"a":1})),
            ("# only a comment\n", json!(null)),
            ("{\"a\": 1}", json!({"a":1})),
            ("{a: 1}", json!({"a":1})),
            ("a: |\n  x\n  y\n", json!({"a":"x\ny\n"})),
            ("v: 1.20\nport: 080\n", json!({"v":1.2,"port":80})),
            ("mode: 0644\n", json!({"mode":420})),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn duplicate_keys_are_reported() {
        let parsed =
            parse_yaml(b"spec:\n  type: A\n  ports:\n  - port: 1\n    port: 2\n  type: B\n");
        let parsed = parsed.expect("the last duplicate is used");
        assert_eq!(parsed.duplicates, ["spec.ports[0].port", "spec.type"]);
        assert_eq!(parsed.value, json!({"spec":{"type":"B","ports":[{"port":2}]}}));
    }

    #[test]
    fn the_expanded_size_is_limited() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let below = format!("*a{}, ", level - 1).repeat(9);
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert!(parse_yaml(bomb.as_bytes()).is_err());
        let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
        assert!(parse_yaml(deep.as_bytes()).is_err());
        assert!(parse_yaml(b"a: [1\n").is_err());
        assert!(parse_yaml(&[0xff, 0xfe, 0x00]).is_err());
    }
}
