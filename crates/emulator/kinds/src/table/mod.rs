//! Tables for `kubectl get`. `columns.txt` has the columns of each kind; cells that are more than a
//! path have code (`rule`).

pub mod age;
mod column;
mod custom;
mod label;
mod rule;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::crd;
use crate::resource::Resource;

pub(crate) use rule::pod_finished;

/// The object in a row (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// Whether a table has its column definitions. A watch sends them once, in its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definitions {
    /// Yes.
    Given,
    /// No: they are `null`.
    Left,
}

impl IncludeObject {
    /// The value of the query parameter; `None` for a value that does not exist.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// The `columnDefinitions` of a resource.
pub fn columns(resource: &Resource) -> Vec<Value> {
    resource.columns.definitions()
}

/// The cells of an object, one a column.
pub fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    resource.columns.cells(object, now)
}

/// The table of a list; `list_meta` is the list's `metadata`.
pub fn table<'a>(
    resource: &Resource,
    objects: impl IntoIterator<Item = &'a Value>,
    list_meta: Value,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let rows = objects.into_iter().map(|object| row(resource, object, include, now)).collect();
    assemble(list_meta, resource.columns.definitions().into(), rows)
}

/// The table of one object, as a get or a frame of a watch shows it. A bookmark is such an object:
/// one with nothing but its metadata.
pub fn table_of_one(
    resource: &Resource,
    object: &Value,
    definitions: Definitions,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns = match definitions {
        Definitions::Given => resource.columns.definitions().into(),
        Definitions::Left => Value::Null,
    };
    let version = object.get("metadata").and_then(|metadata| metadata.get("resourceVersion"));
    let rows = vec![row(resource, object, include, now)];
    assemble(json!({"resourceVersion": version}), columns, rows)
}

/// The columns of a resource.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    BuiltIn(&'static [column::Column]),
    Custom(Vec<crd::Column>),
}

impl Columns {
    /// The columns of a built-in kind.
    pub(crate) fn of_kind(group: &str, kind: &str) -> Self {
        Self::BuiltIn(column::of_kind(group, kind))
    }

    fn definitions(&self) -> Vec<Value> {
        match self {
            Self::BuiltIn(columns) => columns.iter().map(column::Column::definition).collect(),
            Self::Custom(columns) => custom::definitions(columns),
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Self::BuiltIn(columns) => {
                columns.iter().map(|column| column.cell(object, now)).collect()
            }
            Self::Custom(columns) => custom::cells(columns, object, now),
        }
    }
}

/// The cells, the conditions of the whole row, and the object as far as the client wants it.
fn row(resource: &Resource, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    let mut row = Map::new();
    row.insert("cells".to_owned(), resource.columns.cells(object, now).into());
    if let Some(conditions) = (resource.strategy.row_conditions)(object) {
        row.insert("conditions".to_owned(), conditions);
    }
    row.insert("object".to_owned(), included(resource, object, include));
    row.into()
}

fn assemble(metadata: Value, columns: Value, rows: Vec<Value>) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn included(resource: &Resource, object: &Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata"),
        }),
        IncludeObject::Object => {
            let mut object = object.clone();
            // Items of lists do not say what they are; rows do.
            if let Some(map) = object.as_object_mut() {
                map.entry("kind").or_insert_with(|| (*resource.kind).into());
                map.entry("apiVersion").or_insert_with(|| resource.api_version().into());
            }
            object
        }
    }
}
