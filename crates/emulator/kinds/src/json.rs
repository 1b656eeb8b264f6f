//! Helpers for JSON values: read at a path, set defaults, copy from the old object. A value of
//! another type counts as absent, so that no input panics.

use std::fmt;

use serde_json::{Map, Value};

/// The value at a path of keys.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key)).filter(|value| !value.is_null())
}

/// The text at a path; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The integer at a path.
pub(crate) fn int(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).and_then(Value::as_i64)
}

/// Whether there is `true` at a path.
pub(crate) fn is_true(value: &Value, path: &[&str]) -> bool {
    at(value, path).and_then(Value::as_bool).unwrap_or_default()
}

/// The list at a path; empty if there is none.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The entries of the object at a path, in the order of their keys.
pub(crate) fn entries<'a>(
    value: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
    let object = at(value, path).and_then(Value::as_object);
    object.into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// The object itself, for writing; anything else becomes an empty object.
pub(crate) fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("just made an object")
}

/// The value at a path, for writing; missing objects are made on the way.
pub(crate) fn make<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(value, |value, key| object(value).entry(*key).or_insert(Value::Null))
}

/// The value at a path, for writing, if it is there.
pub(crate) fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(key)).filter(|value| !value.is_null())
}

/// The items of the list at a path, for writing.
pub(crate) fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    match at_mut(value, path) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

/// Sets a key that is absent, null or an empty string: what Go's zero values are.
pub(crate) fn fill(value: &mut Value, key: &str, with: impl Into<Value>) {
    let empty = match value.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        object(value).insert(key.to_owned(), with.into());
    }
}

/// Adds an item to the list at a path; anything else becomes a list.
pub(crate) fn push(value: &mut Value, path: &[&str], item: Value) {
    match make(value, path) {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}

/// Sets a key that is absent or null; an empty string stays.
pub(crate) fn fill_absent(value: &mut Value, key: &str, with: impl Into<Value>) {
    if value.get(key).is_none_or(Value::is_null) {
        object(value).insert(key.to_owned(), with.into());
    }
}

/// Sets a number that is absent or zero.
pub(crate) fn fill_number(value: &mut Value, key: &str, with: i64) {
    if value.get(key).and_then(Value::as_i64).unwrap_or_default() == 0 {
        object(value).insert(key.to_owned(), with.into());
    }
}

/// Makes the value at a path what it is in `old`: set, or absent.
pub(crate) fn carry(new: &mut Value, old: &Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    match path.iter().try_fold(old, |value, key| value.get(key)) {
        Some(value) => {
            if path.iter().try_fold(&*new, |value, key| value.get(key)) != Some(value) {
                *make(new, path) = value.clone();
            }
        }
        None => {
            let parent = parents.iter().try_fold(new, |value, key| value.get_mut(key));
            if let Some(Value::Object(parent)) = parent {
                parent.remove(*last);
            }
        }
    }
}

/// A field path, formatted only for an error.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// `spec`.
    pub(crate) fn root(name: &'a str) -> Self {
        Self { parent: None, step: Step::Name(name) }
    }

    /// `spec.name`.
    pub(crate) fn child(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Name(name) }
    }

    /// `spec[0]`.
    pub(crate) fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(index) }
    }

    /// `spec[key]`.
    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match (self.step, self.parent) {
            (Step::Name(name), None) => f.write_str(name),
            (Step::Name(name), Some(_)) => write!(f, ".{name}"),
            (Step::Index(index), _) => write!(f, "[{index}]"),
            (Step::Key(key), _) => write!(f, "[{key}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_copied_and_removed() {
        let old = json!({"a": {"b": 1}});
        let mut new = json!({"a": {"b": 2, "c": 3}});
        carry(&mut new, &old, &["a", "b"]);
        carry(&mut new, &old, &["a", "c"]);
        carry(&mut new, &old, &["x", "y"]);
        assert_eq!(new, old);
    }

    #[test]
    fn paths_are_printed() {
        let spec = Path::root("spec");
        let data = spec.child("data");
        let item = data.index(3);
        assert_eq!(item.key("k").to_string(), "spec.data[3][k]");
    }

    #[test]
    fn values_of_another_type_are_absent() {
        let mut value = json!({"a": 1, "b": ""});
        assert_eq!(text(&value, &["a"]), "");
        assert_eq!(text(&value, &["a", "x"]), "");
        fill(&mut value, "b", "c");
        *make(&mut value, &["a", "x"]) = json!(2);
        assert_eq!(value, json!({"a": {"x": 2}, "b": "c"}));
    }
}
