//! The forms of an object in a reply: JSON, YAML, Table, metadata only.

use bytes::Bytes;
use jiff::Timestamp;
use nearhop_kinds::Resource;
use nearhop_kinds::table::{self, Definitions, IncludeObject};
use serde_json::{Value, json};

use crate::http::{Form, MetaVersion, Query, Reply};
use crate::status::ApiError;
use crate::store::{Stored, type_meta};

/// What the rows of a Table include.
pub(super) fn include_of(query: &Query) -> Result<IncludeObject, ApiError> {
    let asked = query.get("includeObject").unwrap_or_default();
    IncludeObject::parse(asked).ok_or_else(|| {
        ApiError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {asked:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))
    })
}

/// The head of an object's text: its kind and version.
pub(super) fn head_of(resource: &Resource) -> String {
    type_meta(&resource.kind, &resource.api_version())
}

/// An object in the form of its resource, with kind and version.
pub(super) fn to_value(resource: &Resource, object: &Stored) -> Value {
    let value = object.to_value(&head_of(resource));
    match resource.strategy.stored_form {
        Some(form) => (form.from_stored)(&value),
        None => value,
    }
}

/// An object's JSON text. In lists, objects of built-in kinds carry no kind and version.
pub(super) fn write_json(resource: &Resource, head: &str, object: &Stored, out: &mut Vec<u8>) {
    if resource.strategy.stored_form.is_some() {
        let mut value = to_value(resource, object);
        if head.is_empty()
            && let Some(members) = value.as_object_mut()
        {
            members.remove("kind");
            members.remove("apiVersion");
        }
        serde_json::to_writer(out, &value).expect("a value is written to memory");
    } else {
        object.write_json(head, out);
    }
}

/// The reply with one object.
pub(super) fn reply(
    resource: &Resource,
    object: &Stored,
    code: u16,
    form: Form,
    query: &Query,
) -> Result<Reply, ApiError> {
    if form == Form::Object && !query.flag("pretty") {
        let mut text = Vec::with_capacity(object.len() + 128);
        write_json(resource, &head_of(resource), object, &mut text);
        text.push(b'\n');
        return Ok(Reply::json_bytes(code, text));
    }
    reply_value(resource, &to_value(resource, object), code, form, query)
}

/// The same for an object that is not stored (a dry run, a subresource).
pub(super) fn reply_value(
    resource: &Resource,
    object: &Value,
    code: u16,
    form: Form,
    query: &Query,
) -> Result<Reply, ApiError> {
    match form {
        Form::Object if query.flag("pretty") => {
            let mut text =
                serde_json::to_string_pretty(object).expect("a value is written to memory");
            text.push('\n');
            Ok(Reply::json_bytes(code, text))
        }
        Form::Object => Ok(Reply::json(code, object)),
        Form::Yaml => Ok(yaml(code, object)),
        Form::Partial(version) => Ok(Reply::json(code, &partial(object, version))),
        Form::PartialList(_) => Err(ApiError::not_acceptable(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list (*{}.{})",
            go_package(resource),
            resource.kind
        ))),
        Form::Table(version) => {
            let include = include_of(query)?;
            let (columns, now) = (Definitions::Given, Timestamp::now());
            let table = table::table_of_one(resource, object, columns, include, now);
            Ok(Reply::json(code, &in_version(table, version)))
        }
    }
}

/// The Go package that Kubernetes names in messages about a resource's type.
pub(super) fn go_package(resource: &Resource) -> &str {
    match resource.group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    }
}

pub(super) fn yaml(code: u16, value: &Value) -> Reply {
    let text = serde_saphyr::to_string(value).unwrap_or_default();
    Reply::new(code, "application/yaml", Bytes::from(text))
}

pub(super) fn partial(object: &Value, version: MetaVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.api_version(),
        "metadata": object["metadata"]
    })
}

/// A Table, and its metadata, in a version of `meta.k8s.io`.
pub(super) fn in_version(mut table: Value, version: MetaVersion) -> Value {
    if version == MetaVersion::V1 {
        return table;
    }
    table["apiVersion"] = version.api_version().into();
    for row in table["rows"].as_array_mut().into_iter().flatten() {
        if row["object"]["kind"] == "PartialObjectMetadata" {
            row["object"]["apiVersion"] = version.api_version().into();
        }
    }
    table
}
