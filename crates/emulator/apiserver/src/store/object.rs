//! A stored object: its JSON text, and the fields that selectors and controllers read without
//! parsing it.
//!
//! The text is stored without `kind`, `apiVersion` and `resourceVersion`, cut after the opening of
//! `metadata`. List items, single objects and watch frames are concatenations, and the version is
//! assigned last.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// The key of an object within its storage. Cluster-scoped objects have no namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

impl Name {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectRef {
    pub(crate) storage: Arc<str>,
    pub(crate) name: Name,
}

/// An object at a version.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) version: u64,
    pub(crate) name: Name,
    pub(crate) content: Arc<Content>,
}

/// An object without its version.
#[derive(Debug)]
pub(crate) struct Content {
    /// What follows `"metadata":{"resourceVersion":"N",`.
    tail: Bytes,
    pub(crate) uid: Box<str>,
    pub(crate) labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the field selectors of its kind, besides name and namespace.
    pub(crate) fields: Box<[(&'static str, Box<str>)]>,
    pub(crate) owners: Box<[Box<str>]>,
    /// Whether it has a deletionTimestamp.
    pub(crate) deleting: bool,
}

impl Content {
    /// Splits an object. `kind`, `apiVersion` and `metadata.resourceVersion` are left out.
    pub(crate) fn new(object: &Value, fields: Vec<(&'static str, String)>) -> Self {
        let metadata = &object["metadata"];
        let text = |value: &Value| Box::from(value.as_str().unwrap_or_default());
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        Self {
            tail: tail_of(object),
            uid: text(&metadata["uid"]),
            labels: labels.map(|(key, value)| (key.as_str().into(), text(value))).collect(),
            fields: fields.into_iter().map(|(name, value)| (name, value.into())).collect(),
            owners: owners.map(|owner| text(&owner["uid"])).collect(),
            deleting: metadata.get("deletionTimestamp").is_some(),
        }
    }

    /// An object read back from disk.
    pub(crate) fn from_tail(
        tail: Bytes,
        fields_of: impl Fn(&Value) -> Vec<(&'static str, String)>,
    ) -> Option<Self> {
        let object: Value = serde_json::from_slice(&whole(&tail)).ok()?;
        let fields = fields_of(&object);
        Some(Self { tail, ..Self::new(&object, fields) })
    }

    pub(crate) fn tail(&self) -> &Bytes {
        &self.tail
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        self.labels.get(at).map(|(_, value)| &**value)
    }

    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| *name == key).map(|(_, value)| &**value)
    }
}

impl Stored {
    pub(crate) fn new(version: u64, name: Name, content: Arc<Content>) -> Self {
        Self { version, name, content }
    }

    /// The same object at another version.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        Self::new(version, self.name.clone(), Arc::clone(&self.content))
    }

    /// Appends its JSON. `type_meta` is `"kind":"…","apiVersion":"…",` or empty.
    pub(crate) fn write_json(&self, type_meta: &str, out: &mut Vec<u8>) {
        out.reserve(type_meta.len() + self.content.tail.len() + 64);
        write!(out, "{{{type_meta}\"metadata\":{{\"resourceVersion\":\"{}\",", self.version)
            .expect("bytes are written to memory");
        out.extend_from_slice(&self.content.tail);
    }

    /// The object as a value, with `kind` and `apiVersion`.
    pub(crate) fn to_value(&self, type_meta: &str) -> Value {
        let mut text = Vec::new();
        self.write_json(type_meta, &mut text);
        serde_json::from_slice(&text).expect("what was stored was JSON")
    }

    pub(crate) fn len(&self) -> usize {
        self.content.tail.len() + 64
    }
}

/// `"kind":"…","apiVersion":"…",`, which goes in front of an object's text.
pub(crate) fn type_meta(kind: &str, api_version: &str) -> String {
    format!("\"kind\":{},\"apiVersion\":{},", Value::from(kind), Value::from(api_version))
}

fn tail_of(object: &Value) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    let mut separator: &[u8] = b"";
    for (key, value) in object["metadata"].as_object().into_iter().flatten() {
        if key != "resourceVersion" {
            out.extend_from_slice(separator);
            write_member(key, value, &mut out);
            separator = b",";
        }
    }
    out.push(b'}');
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "metadata" | "kind" | "apiVersion") {
            out.push(b',');
            write_member(key, value, &mut out);
        }
    }
    out.push(b'}');
    out.shrink_to_fit();
    Bytes::from(out)
}

fn write_member(key: &str, value: &Value, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, key).expect("a string is written to memory");
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect("a value is written to memory");
}

fn whole(tail: &[u8]) -> Vec<u8> {
    [b"{\"metadata\":{", tail].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stored_object_round_trips_with_its_version() {
        let object = json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "a\"b", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"},
                "ownerReferences": [{"uid": "o"}]},
            "spec": {"ports": [1, 2]}, "status": null
        });
        let content = Content::new(&object, vec![("spec.type", "ClusterIP".to_owned())]);
        assert_eq!(content.label("x"), Some("y"));
        assert_eq!(content.field("spec.type"), Some("ClusterIP"));
        assert_eq!(*content.owners, [Box::from("o")]);
        let stored = Stored::new(1234, Name::new("ns", "a"), Arc::new(content));
        let back = stored.to_value(&type_meta("Service", "v1"));
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(back, expected);
    }
}
