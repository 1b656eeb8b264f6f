//! The printer columns of custom resources.

use serde_json::Value;

use super::{cell, list, text};

/// A column after the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// `Replicas`.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// `int32`; mostly empty.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 is always shown.
    pub priority: i64,
    /// `.spec.replicas`.
    pub json_path: String,
}

/// The columns of a version of a custom resource after its name: those of its definition, or its
/// age.
pub fn columns(version: &Value) -> Vec<Column> {
    let columns = list(version, "/additionalPrinterColumns");
    if columns.is_empty() {
        return vec![Column {
            name: "Age".to_owned(),
            type_: "date".to_owned(),
            format: String::new(),
            description: "Time since the object was created.".to_owned(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".to_owned(),
        }];
    }
    columns.iter().map(Column::from_definition).collect()
}

impl Column {
    fn from_definition(column: &Value) -> Self {
        let text = |key: &str| text(column, &format!("/{key}")).to_owned();
        let json_path = text("jsonPath");
        let description = match text("description") {
            none if none.is_empty() => {
                format!("Custom resource definition column (in JSONPath format): {json_path}")
            }
            given => given,
        };
        Self {
            name: text("name"),
            type_: text("type"),
            format: text("format"),
            description,
            priority: column.get("priority").and_then(Value::as_i64).unwrap_or_default(),
            json_path,
        }
    }

    /// The cell of an object, or `null`. A date is a time, which the caller shows as an age.
    pub fn cell(&self, object: &Value) -> Value {
        let value = cell(object, &self.json_path);
        match (self.type_.as_str(), &value) {
            (_, Value::Null) => Value::Null,
            ("string", Value::String(_)) => value,
            ("string", other) => other.to_string().into(),
            ("integer", Value::Number(number)) => match number.as_i64() {
                Some(int) => int.into(),
                None => (number.as_f64().unwrap_or_default() as i64).into(),
            },
            ("number", Value::Number(_))
            | ("boolean", Value::Bool(_))
            | ("date", Value::String(_)) => value,
            _ => Value::Null,
        }
    }
}
