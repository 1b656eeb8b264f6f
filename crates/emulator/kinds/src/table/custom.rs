//! Columns of custom resources: the name, and what their definition asks for.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use super::column::text;
use crate::crd::Column;

/// As entries of `columnDefinitions`.
pub(super) fn definitions(columns: &[Column]) -> Vec<Value> {
    let name = definition("Name", "string", "name", "Name of the object", 0);
    let others = columns
        .iter()
        .map(|c| definition(&c.name, &c.type_, &c.format, &c.description, c.priority));
    std::iter::once(name).chain(others).collect()
}

/// The cells of an object. Dates are shown as ages; what is not there, or not of the column's type,
/// is null.
pub(super) fn cells(columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    let name = Value::from(text(object, "metadata.name"));
    let others = columns.iter().map(|column| match column.cell(object) {
        Value::String(time) if column.type_ == "date" => age::since(&time, now).into(),
        cell => cell,
    });
    std::iter::once(name).chain(others).collect()
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}
