//! JSON patch (RFC 6902), with the deviations of the library that kube-apiserver uses: `replace` of
//! a missing member adds it, `test` treats a missing member as `null`, negative indices count from
//! the end, and the whole document can be tested and replaced but not removed or copied.
//!
//! The `json-patch` crate is not used, because it follows the RFC in all of these. The cost of a
//! patch is limited: 10 000 operations, 3 MiB of copies (both as in kube-apiserver), depth, and
//! total work.

use std::borrow::Cow;

use serde_json::Value;

use super::{PatchError, cannot_unmarshal};

const MOST_OPERATIONS: usize = 10_000;
/// The most bytes of JSON that all `copy` operations together may add.
const MOST_COPIED: usize = 3 << 20;
/// The depth limit of the JSON parser. A patch could build a deeper document step by step, which
/// the parser would then reject.
const MOST_DEPTH: usize = 127;
/// The most bytes that moving values and shifting list items may touch: less than a second of work.
const MOST_EFFORT: usize = 1 << 30;

/// Applies a JSON patch.
///
/// # Errors
/// 400 if it is not a list of operations, 413 if there are too many, 422 if one cannot be applied.
pub fn json_patch(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = operations(patch)?;
    if operations.len() > MOST_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is \
             {MOST_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut patching = Patching { doc: doc.clone(), copied: 0, effort: 0 };
    for operation in &operations {
        patching.apply(operation).ok_or_else(PatchError::rejected)?;
    }
    Ok(patching.doc)
}

struct Operation<'a> {
    op: &'a str,
    path: Option<&'a str>,
    from: Option<&'a str>,
    /// A missing value is `null`.
    value: &'a Value,
}

fn operations(patch: &Value) -> Result<Vec<Operation<'_>>, PatchError> {
    match patch {
        Value::Array(list) => list.iter().map(operation).collect(),
        Value::Null => Ok(Vec::new()),
        other => Err(undecodable(other, "value of type []handlers.jsonPatchOp")),
    }
}

fn operation(value: &Value) -> Result<Operation<'_>, PatchError> {
    if !value.is_object() && !value.is_null() {
        return Err(undecodable(value, "value of type handlers.jsonPatchOp"));
    }
    let text = |name: &str| match &value[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.as_str())),
        other => {
            Err(undecodable(other, &format!("struct field jsonPatchOp.{name} of type string")))
        }
    };
    Ok(Operation {
        op: text("op")?.unwrap_or_default(),
        path: text("path")?,
        from: text("from")?,
        value: &value["value"],
    })
}

fn undecodable(value: &Value, target: &str) -> PatchError {
    PatchError::BadRequest(format!("error decoding patch: {}", cannot_unmarshal(value, target)))
}

/// A document that is being patched. Its methods return `None` if an operation cannot be applied:
/// the server's reply does not depend on the cause.
struct Patching {
    doc: Value,
    copied: usize,
    effort: usize,
}

impl Patching {
    fn apply(&mut self, operation: &Operation<'_>) -> Option<()> {
        let path = operation.path?;
        match operation.op {
            "add" => self.add(path, operation.value.clone()),
            "remove" => self.remove(path).map(drop),
            "replace" => self.replace(path, operation.value),
            "move" => {
                let value = self.remove(operation.from?)?;
                self.add(path, value)
            }
            "copy" => {
                let value = self.get(operation.from?)?.clone();
                self.copied += Size::of(&value).bytes;
                (self.copied <= MOST_COPIED).then_some(())?;
                self.add(path, value)
            }
            "test" if path.is_empty() => (self.doc == *operation.value).then_some(()),
            "test" => (self.get(path)? == operation.value).then_some(()),
            _ => None,
        }
    }

    /// The value at a path; `null` for a missing member of an object.
    fn get(&self, path: &str) -> Option<&Value> {
        let (parent, key) = split(path)?;
        let mut at = &self.doc;
        for token in parent {
            at = child(at, &token)?;
        }
        let missing = at.is_object().then_some(&Value::Null);
        child(at, &key).or(missing)
    }

    fn add(&mut self, path: &str, value: Value) -> Option<()> {
        self.check(path, &value)?;
        let (parent, key) = self.find(path)?;
        let mut shifted = 0;
        match parent {
            Value::Object(map) => {
                map.insert(key.into_owned(), value);
            }
            Value::Array(list) => {
                let at = insertion(&key, list.len())?;
                shifted = list.len() - at;
                list.insert(at, value);
            }
            _ => return None,
        }
        self.spend(shifted.saturating_mul(size_of::<Value>()))
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let (parent, key) = self.find(path)?;
        let mut shifted = 0;
        let value = match parent {
            Value::Object(map) => map.remove(&*key)?,
            Value::Array(list) => {
                let at = existing(&key, list.len())?;
                shifted = list.len() - at;
                list.remove(at)
            }
            _ => return None,
        };
        self.spend(shifted.saturating_mul(size_of::<Value>()))?;
        Some(value)
    }

    fn replace(&mut self, path: &str, value: &Value) -> Option<()> {
        self.check(path, value)?;
        if path.is_empty() {
            (value.is_object() || value.is_array()).then_some(())?;
            self.doc = value.clone();
            return Some(());
        }
        let (parent, key) = self.find(path)?;
        match parent {
            Value::Object(map) => {
                map.insert(key.into_owned(), value.clone());
            }
            Value::Array(list) => {
                let at = existing(&key, list.len())?;
                *list.get_mut(at)? = value.clone();
            }
            _ => return None,
        }
        Some(())
    }

    /// The container of the value at a path, and the last token of the path.
    fn find<'p>(&mut self, path: &'p str) -> Option<(&mut Value, Cow<'p, str>)> {
        let (parent, key) = split(path)?;
        let mut at = &mut self.doc;
        for token in parent {
            at = match at {
                Value::Object(map) => map.get_mut(&*token)?,
                Value::Array(list) => {
                    let index = existing(&token, list.len())?;
                    list.get_mut(index)?
                }
                _ => return None,
            };
        }
        Some((at, key))
    }

    /// Checks that a value may be written at a path.
    fn check(&mut self, path: &str, value: &Value) -> Option<()> {
        let size = Size::of(value);
        let above = path.bytes().filter(|b| *b == b'/').count();
        (above + size.depth <= MOST_DEPTH).then_some(())?;
        self.spend(size.bytes)
    }

    fn spend(&mut self, effort: usize) -> Option<()> {
        self.effort = self.effort.saturating_add(effort);
        (self.effort <= MOST_EFFORT).then_some(())
    }
}

/// All tokens of a path except the last one, and the last one. Text before the first `/` is
/// ignored; `None` if there is no `/`.
fn split(path: &str) -> Option<(impl Iterator<Item = Cow<'_, str>>, Cow<'_, str>)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent.split('/').skip(1).map(unescape), unescape(key)))
}

fn unescape(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        Cow::Owned(token.replace("~1", "/").replace("~0", "~"))
    } else {
        Cow::Borrowed(token)
    }
}

fn child<'v>(at: &'v Value, token: &str) -> Option<&'v Value> {
    match at {
        Value::Object(map) => map.get(token),
        Value::Array(list) => list.get(existing(token, list.len())?),
        _ => None,
    }
}

/// The index of an existing item; negative indices count from the end.
fn existing(token: &str, len: usize) -> Option<usize> {
    counted(token, len).filter(|at| *at < len)
}

/// The index before which to insert; `-` and `-1` append.
fn insertion(token: &str, len: usize) -> Option<usize> {
    if token == "-" {
        return Some(len);
    }
    counted(token, len.checked_add(1)?).filter(|at| *at <= len)
}

fn counted(token: &str, len: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    if index >= 0 {
        return usize::try_from(index).ok();
    }
    len.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
}

/// The approximate size of a value in bytes of JSON, and its depth.
struct Size {
    bytes: usize,
    depth: usize,
}

impl Size {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Self { bytes: 5, depth: 0 },
            Value::String(text) => Self { bytes: text.len() + 3, depth: 0 },
            Value::Array(items) => Self::around(items.iter().map(Self::of)),
            Value::Object(map) => Self::around(map.iter().map(|(key, value)| {
                let size = Self::of(value);
                Self { bytes: size.bytes + key.len() + 4, depth: size.depth }
            })),
        }
    }

    fn around(children: impl Iterator<Item = Self>) -> Self {
        let outer = Self { bytes: 2, depth: 1 };
        children.fold(outer, |sum, child| Self {
            bytes: sum.bytes + child.bytes,
            depth: sum.depth.max(child.depth + 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(doc: Value, patch: Value) -> Option<Value> {
        match json_patch(&doc, &patch) {
            Ok(doc) => Some(doc),
            Err(error) => {
                assert_eq!(error, PatchError::rejected());
                None
            }
        }
    }

    #[test]
    fn each_operation_is_applied() {
        let doc = || json!({"a": {"b": 1}, "l": [1, 2, 3], "x/y": 1, "n": null});
        let with = |pointer: &str, value: Value| {
            let mut doc = doc();
            *doc.pointer_mut(pointer).unwrap() = value;
            Some(doc)
        };
        for (operation, expected) in [
            (json!({"op": "add", "path": "/a/b", "value": 2}), with("/a/b", json!(2))),
            (json!({"op": "add", "path": "/l/-", "value": 4}), with("/l", json!([1, 2, 3, 4]))),
            (json!({"op": "add", "path": "/l/3", "value": 4}), with("/l", json!([1, 2, 3, 4]))),
            (json!({"op": "add", "path": "/l/0", "value": 0}), with("/l", json!([0, 1, 2, 3]))),
            (json!({"op": "add", "path": "/l/-1", "value": 4}), with("/l", json!([1, 2, 3, 4]))),
            (json!({"op": "add", "path": "/l/4", "value": 4}), None),
            (json!({"op": "add", "path": "/l/x", "value": 4}), None),
            (json!({"op": "add", "path": "/q/r", "value": 4}), None),
            (json!({"op": "add", "path": "/n/r", "value": 4}), None),
            (json!({"op": "add", "path": "/a/b/c", "value": 4}), None),
            (json!({"op": "add", "path": "", "value": {}}), None),
            (json!({"op": "add", "value": {}}), None),
            (json!({"op": "add", "path": "/a/b"}), with("/a/b", Value::Null)),
            (json!({"op": "remove", "path": "/a/b"}), with("/a", json!({}))),
            (json!({"op": "remove", "path": "/l/0"}), with("/l", json!([2, 3]))),
            (json!({"op": "remove", "path": "/l/-1"}), with("/l", json!([1, 2]))),
            (json!({"op": "remove", "path": "/l/-4"}), None),
            (json!({"op": "remove", "path": "/l/3"}), None),
            (json!({"op": "remove", "path": "/l/-"}), None),
            (json!({"op": "remove", "path": "/q"}), None),
            (json!({"op": "remove", "path": ""}), None),
            (json!({"op": "replace", "path": "/x~1y", "value": 2}), with("/x~1y", json!(2))),
            (
                json!({"op": "replace", "path": "/a/c", "value": 2}),
                with("/a", json!({"b": 1, "c": 2})),
            ),
            (json!({"op": "replace", "path": "/l/1", "value": 9}), with("/l", json!([1, 9, 3]))),
            (json!({"op": "replace", "path": "/l/3", "value": 9}), None),
            (json!({"op": "replace", "path": "", "value": {"z": 1}}), Some(json!({"z": 1}))),
            (json!({"op": "replace", "path": "", "value": 1}), None),
            (json!({"op": "move", "from": "/l/0", "path": "/l/-"}), with("/l", json!([2, 3, 1]))),
            (json!({"op": "move", "from": "/q", "path": "/l/-"}), None),
            (json!({"op": "move", "from": "/a", "path": "/a/b"}), None),
            (json!({"op": "move", "path": "/a/b"}), None),
            (
                json!({"op": "copy", "from": "/a", "path": "/l/1"}),
                with("/l", json!([1, {"b": 1}, 2, 3])),
            ),
            (json!({"op": "copy", "from": "/q", "path": "/a/b"}), with("/a/b", Value::Null)),
            (json!({"op": "copy", "from": "", "path": "/a/b"}), None),
            (json!({"op": "test", "path": "/a", "value": {"b": 1}}), Some(doc())),
            (json!({"op": "test", "path": "/a/b", "value": 1.0}), None),
            (json!({"op": "test", "path": "/q", "value": null}), Some(doc())),
            (json!({"op": "test", "path": "/q", "value": 1}), None),
            (json!({"op": "test", "path": "/l/3", "value": null}), None),
            (json!({"op": "test", "path": "", "value": doc()}), Some(doc())),
            (json!({"op": "frob", "path": "/a"}), None),
            (json!({"path": "/a"}), None),
            (json!(null), None),
        ] {
            assert_eq!(patched(doc(), json!([operation.clone()])), expected, "{operation}");
        }
    }

    #[test]
    fn operations_apply_in_order_or_not_at_all() {
        let patch = json!([
            {"op": "add", "path": "/m", "value": {"x/y": "1"}},
            {"op": "replace", "path": "/m/x~1y", "value": "2"},
            {"op": "add", "path": "/m/~01", "value": "3"},
        ]);
        assert_eq!(patched(json!({}), patch).unwrap(), json!({"m": {"x/y": "2", "~1": "3"}}));
        assert_eq!(json_patch(&json!({"a": 1}), &Value::Null).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn a_patch_must_be_a_list_of_operations() {
        for (patch, why) in [
            (json!({"op": "remove"}), "object into Go value of type []handlers.jsonPatchOp"),
            (json!(["x"]), "string into Go value of type handlers.jsonPatchOp"),
            (json!([{"op": 1}]), "number into Go struct field jsonPatchOp.op of type string"),
        ] {
            let error = json_patch(&json!({}), &patch).unwrap_err().to_string();
            assert_eq!(error, format!("error decoding patch: json: cannot unmarshal {why}"));
        }
    }

    #[test]
    fn too_many_operations_are_rejected() {
        let patch = Value::Array(vec![json!({"op": "test", "path": "/a"}); 10_001]);
        assert_eq!(
            json_patch(&json!({}), &patch),
            Err(PatchError::TooLarge(
                "Request entity too large: The allowed maximum operations in a JSON patch is \
                 10000, got 10001"
                    .into()
            ))
        );
    }

    #[test]
    fn copies_and_depth_are_limited() {
        let grow = |times| {
            let copy = json!({"op": "copy", "from": "/a", "path": "/a/-"});
            patched(json!({"a": ["0123456789"]}), Value::Array(vec![copy; times]))
        };
        assert!(grow(10).is_some());
        assert!(grow(30).is_none());
        let deepen = |times| {
            let copy = json!({"op": "copy", "from": "/a", "path": "/a/b"});
            patched(json!({"a": {}}), Value::Array(vec![copy; times]))
        };
        // The document, `a`, and `b` 125 times.
        let deepest = deepen(125).unwrap().to_string();
        assert!(serde_json::from_str::<Value>(&deepest).is_ok());
        assert!(deepen(126).is_none());
    }

    #[test]
    fn repeated_shifts_of_a_long_list_are_rejected_quickly() {
        let doc = json!({"l": vec![0; 1_000_000]});
        let first = json!({"op": "add", "path": "/l/0", "value": 1});
        assert!(patched(doc, Value::Array(vec![first; 10_000])).is_none());
    }
}
