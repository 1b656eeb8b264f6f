//! Lists that are sets or maps (`x-kubernetes-list-type`): they must not contain duplicates.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::keywords::Keywords;
use super::walk;
use crate::FieldError;

/// The duplicates in sets and maps. None are reported if the `old` object already had some.
pub fn validate_lists(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = find(schema, value);
    if !errors.is_empty() && old.is_some_and(|old| !find(schema, old).is_empty()) {
        errors.clear();
    }
    errors
}

fn find(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, value, &mut |keywords, value, path| {
        let Value::Array(list) = value else { return };
        match keywords.list_type.filter(|_| list.len() > 1) {
            Some("set") => duplicates(list.iter().cloned(), path, &mut errors),
            Some("map") => duplicate_keys(keywords, list, path, &mut errors),
            _ => {}
        }
    });
    errors
}

fn duplicate_keys(
    keywords: &Keywords<'_>,
    list: &[Value],
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let odd = list.iter().position(|item| !item.is_object() && !item.is_null());
    if let Some((at, item)) = odd.and_then(|at| Some((at, list.get(at)?))) {
        let text = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(format!("{path}[{at}]"), item, text));
        return;
    }
    let names = keywords.map_keys();
    let key_of = |item: &Value| {
        let keys =
            names.clone().filter_map(|name| Some((name.to_owned(), item.get(name)?.clone())));
        Value::Object(keys.collect::<Map<String, Value>>())
    };
    duplicates(list.iter().map(key_of), path, errors);
}

/// Reports each duplicate value once, at its second occurrence.
fn duplicates(values: impl Iterator<Item = Value>, path: &str, errors: &mut Vec<FieldError>) {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (at, value) in values.enumerate() {
        let seen = times.entry(value.to_string()).or_default();
        *seen += 1;
        if *seen == 2 {
            errors.push(FieldError::duplicate(format!("{path}[{at}]"), &value));
        }
    }
}
