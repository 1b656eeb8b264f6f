//! Columns of custom resources: the name, and what `additionalPrinterColumns` asks for.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use super::column::{dig, list, text};

/// The columns of a `spec.versions[]` entry.
pub(super) fn columns(version: &Value) -> Vec<Value> {
    let mut columns = vec![column("Name", "string", "name", "Name of the object", 0)];
    let printed = list(version, "additionalPrinterColumns");
    columns.extend(printed.iter().map(|c| {
        let description = match text(c, "description") {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                text(c, "jsonPath")
            ),
            description => description.to_owned(),
        };
        let priority = dig(c, "priority").as_i64().unwrap_or_default();
        column(text(c, "name"), text(c, "type"), text(c, "format"), &description, priority)
    }));
    if printed.is_empty() {
        columns.push(column("Age", "date", "", "Time since it was created", 0));
    }
    columns
}

/// The cells of an object. A value that is not there, or not of the column's type, is null.
pub(super) fn cells(version: &Value, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![Value::from(text(object, "metadata.name"))];
    let printed = list(version, "additionalPrinterColumns");
    cells.extend(printed.iter().map(|c| {
        let path = text(c, "jsonPath").trim_start_matches('.');
        let value = dig(object, path);
        match (text(c, "type"), value) {
            ("date", Value::String(time)) => age::since(time, now).into(),
            ("integer", Value::Number(_)) | ("number", Value::Number(_)) => value.clone(),
            ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => value.clone(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => other.to_string().into(),
            _ => Value::Null,
        }
    }));
    if printed.is_empty() {
        cells.push(age::since(text(object, "metadata.creationTimestamp"), now).into());
    }
    cells
}

fn column(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}
