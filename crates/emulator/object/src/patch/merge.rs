//! JSON merge patch (RFC 7386): objects merge, `null` removes, everything else replaces.
//!
//! There is one difference from the RFC, as in kube-apiserver: a new value also loses the `null`
//! members of objects inside arrays.

use serde_json::{Map, Value};

use super::{OBJECT_TARGET, PatchError, cannot_unmarshal};

/// Applies a merge patch.
///
/// # Errors
/// The patch is not an object.
pub fn merge_patch(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    match patch {
        Value::Object(members) => {
            let mut result = match doc {
                Value::Object(doc) => doc.clone(),
                _ => Map::new(),
            };
            merge_objects(&mut result, members);
            Ok(Value::Object(result))
        }
        Value::Null => Err(PatchError::BadRequest("Invalid JSON Patch".into())),
        other => {
            let problem = cannot_unmarshal(other, OBJECT_TARGET);
            Err(PatchError::BadRequest(format!("error decoding patch: {problem}")))
        }
    }
}

fn merge_objects(doc: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        if value.is_null() {
            doc.remove(key);
            continue;
        }
        match (doc.get_mut(key), value) {
            (Some(Value::Object(doc)), Value::Object(patch)) => merge_objects(doc, patch),
            (Some(doc @ Value::Object(_)), value) => *doc = value.clone(),
            (Some(doc), value) => *doc = without_nulls(value),
            (None, value) => {
                doc.insert(key.clone(), without_nulls(value));
            }
        }
    }
}

/// A copy without `null` members, at any depth. `null` items of arrays stay.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_rfc_7386_are_applied() {
        for (doc, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(merge_patch(&doc, &patch).unwrap(), expected, "{doc} + {patch}");
        }
    }

    #[test]
    fn new_lists_lose_nulls_in_their_objects() {
        let patch = json!({"a": [{"b": null, "c": 1}, null]});
        let expected = json!({"a": [{"c": 1}, null]});
        assert_eq!(merge_patch(&json!({}), &patch).unwrap(), expected);
        assert_eq!(merge_patch(&json!({"a": []}), &patch).unwrap(), expected);
    }

    #[test]
    fn a_patch_must_be_an_object() {
        let text = |patch| merge_patch(&json!({}), &patch).unwrap_err().to_string();
        assert_eq!(
            text(json!([])),
            "error decoding patch: json: cannot unmarshal array into Go value of type \
             map[string]interface {}"
        );
        assert_eq!(text(Value::Null), "Invalid JSON Patch");
    }
}
