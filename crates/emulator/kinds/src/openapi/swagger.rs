//! The Swagger 2.0 document of all groups, made from the version 3 documents. Swagger has neither
//! `oneOf` nor content types of bodies.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::document;
use crate::resource::Registry;

/// The document at `/openapi/v2`, as JSON.
pub fn swagger(registry: &Registry) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for (group, versions) in registry.groups() {
        for version in versions {
            let Some(mut document) = document(registry, group, version) else { continue };
            for (path, entry) in take_map(&mut document, "/paths") {
                paths.insert(path, path_entry(entry));
            }
            for (name, schema) in take_map(&mut document, "/components/schemas") {
                definitions.entry(name).or_insert_with(|| convert(schema));
            }
        }
    }
    let token = json!({"type": "apiKey", "in": "header", "name": "authorization",
        "description": "Bearer token"});
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": token},
        "security": [{"BearerToken": []}],
    })
}

fn take_map(document: &mut Value, pointer: &str) -> Map<String, Value> {
    match document.pointer_mut(pointer).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

fn path_entry(entry: Value) -> Value {
    let Value::Object(entry) = entry else { return entry };
    let converted = entry.into_iter().map(|(key, value)| {
        let value = if key == "parameters" { parameters(value) } else { operation(value) };
        (key, value)
    });
    converted.collect::<Map<_, _>>().into()
}

fn parameters(list: Value) -> Value {
    let Value::Array(list) = list else { return list };
    list.into_iter().map(parameter).collect()
}

/// The keys of the schema are keys of the parameter.
fn parameter(parameter: Value) -> Value {
    let Value::Object(mut parameter) = parameter else { return parameter };
    if let Some(Value::Object(schema)) = parameter.remove("schema") {
        parameter.extend(schema);
    }
    parameter.into()
}

fn operation(operation: Value) -> Value {
    let Value::Object(mut operation) = operation else { return operation };
    let mut list = match operation.remove("parameters").map(parameters) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let consumes = match operation.remove("requestBody") {
        Some(body) => {
            let (media, schema) = content(&body);
            let required = body.get("required").cloned().unwrap_or_else(|| false.into());
            list.insert(
                0,
                json!({"in": "body", "name": "body", "required": required, "schema": schema}),
            );
            media
        }
        None => BTreeSet::from(["*/*".to_owned()]),
    };
    let mut produces = BTreeSet::new();
    if let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) {
        for response in responses.values_mut() {
            let (media, schema) = content(response);
            produces.extend(media);
            let description = response["description"].take();
            *response = match schema {
                Value::Null => json!({"description": description}),
                schema => json!({"description": description, "schema": schema}),
            };
        }
    }
    operation.insert("consumes".to_owned(), json!(consumes));
    operation.insert("produces".to_owned(), json!(produces));
    operation.insert("schemes".to_owned(), json!(["https"]));
    if !list.is_empty() {
        operation.insert("parameters".to_owned(), list.into());
    }
    operation.into()
}

/// The media types of a body, and its schema, which is the same for all.
fn content(body: &Value) -> (BTreeSet<String>, Value) {
    let Some(content) = body.get("content").and_then(Value::as_object) else {
        return (BTreeSet::new(), Value::Null);
    };
    let schema = content.values().next().and_then(|content| content.get("schema"));
    (content.keys().cloned().collect(), schema.cloned().map_or(Value::Null, convert))
}

/// A schema of OpenAPI 3 as Swagger 2.0. The parser bounds the depth of schemas.
fn convert(schema: Value) -> Value {
    match schema {
        Value::Array(list) => list.into_iter().map(convert).collect(),
        Value::Object(map) => convert_object(map),
        Value::String(text) => match text.strip_prefix("#/components/schemas/") {
            Some(name) => format!("#/definitions/{name}").into(),
            None => text.into(),
        },
        other => other,
    }
}

fn convert_object(mut map: Map<String, Value>) -> Value {
    // A string or a number is a string in Swagger.
    let named = map.contains_key("type") || map.contains_key("properties");
    if map.get("oneOf").is_some_and(Value::is_array) && !named {
        map.insert("type".to_owned(), "string".into());
    }
    for key in ["oneOf", "anyOf", "nullable"] {
        // A property of that name is a schema.
        if map.get(key).is_some_and(|value| !value.is_object()) {
            map.remove(key);
        }
    }
    // Swagger allows sibling keys of a `$ref`.
    if let Some(Value::Array(all)) = map.get("allOf")
        && let [Value::Object(only)] = all.as_slice()
        && let Some(reference) = only.get("$ref").cloned()
    {
        map.remove("allOf");
        map.remove("default");
        map.insert("$ref".to_owned(), reference);
    }
    map.into_iter().map(|(key, value)| (key, convert(value))).collect::<Map<_, _>>().into()
}
