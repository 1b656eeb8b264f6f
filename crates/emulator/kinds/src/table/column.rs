//! The columns of `columns.txt` and their cells. Cells that need code are in `rule`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::rule::{self, Rule};
use super::{age, label};

static FACTS: &str = include_str!("columns.txt");

static COLUMNS: LazyLock<BTreeMap<Box<str>, Vec<Column>>> =
    LazyLock::new(|| parse(FACTS).expect("columns.txt is part of the build and tested"));

/// One column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    priority: u8,
    description: &'static str,
    cell: Cell,
}

/// The content of a column.
#[derive(Clone, Debug)]
enum Cell {
    Name,
    Age(Path),
    Created,
    Text(Path, &'static str),
    Int(Path),
    Bool(Path, bool),
    Count(Vec<Path>),
    Join(Path, Option<&'static str>),
    Ratio(Path, Path),
    Labels(Path),
    Selector(Path),
    Rule(Rule),
}

/// `spec.clusterIPs.0`.
type Path = &'static str;

/// The columns of a kind.
pub(super) fn of_kind(group: &str, kind: &str) -> &'static [Column] {
    static OTHERS: LazyLock<Vec<Column>> = LazyLock::new(|| {
        let name = Column::new("Name", Cell::Name, "Name of the object");
        let created = Column::new("Created At", Cell::Created, "When it was created");
        vec![Column { format: "name", ..name }, Column { kind: "date", ..created }]
    });
    // Events of both groups are the same objects.
    let name = match group {
        "" | "events.k8s.io" => kind.to_owned(),
        _ => format!("{kind}.{group}"),
    };
    COLUMNS.get(&*name).map_or(&OTHERS, |columns| columns)
}

impl Column {
    fn new(name: &'static str, cell: Cell, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", priority: 0, description, cell }
    }

    /// As an entry of `columnDefinitions`.
    pub(super) fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }

    /// The cell of an object.
    pub(super) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Name => text(object, "metadata.name").into(),
            Cell::Created => text(object, "metadata.creationTimestamp").into(),
            Cell::Age(path) => age::since(text(object, path), now).into(),
            Cell::Text(path, default) => {
                shown(dig(object, path)).unwrap_or_else(|| (*default).to_owned()).into()
            }
            Cell::Int(path) => int(object, path).into(),
            Cell::Bool(path, default) => dig(object, path).as_bool().unwrap_or(*default).into(),
            Cell::Count(paths) => {
                paths.iter().map(|path| len(dig(object, path))).sum::<usize>().into()
            }
            Cell::Join(path, field) => join(list(object, path), *field).into(),
            Cell::Ratio(part, whole) => {
                format!("{}/{}", int(object, part), int(object, whole)).into()
            }
            Cell::Labels(path) => label::labels(dig(object, path)).into(),
            Cell::Selector(path) => label::selector(dig(object, path)).into(),
            Cell::Rule(rule) => rule(object, now),
        }
    }
}

fn parse(facts: &'static str) -> Result<BTreeMap<Box<str>, Vec<Column>>, String> {
    let mut kinds: BTreeMap<Box<str>, Vec<Column>> = BTreeMap::new();
    let mut kind = "";
    for line in facts.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => kind = line,
            Some(column) => {
                let column = parse_column(column).ok_or_else(|| format!("{kind}: {line}"))?;
                kinds.entry(kind.into()).or_default().push(column);
            }
        }
    }
    Ok(kinds)
}

fn parse_column(line: &'static str) -> Option<Column> {
    let mut parts = line.split(" | ");
    let (header, cell, description) = (parts.next()?, parts.next()?, parts.next()?);
    let (priority, header) = match header.strip_prefix('*') {
        Some(header) => (1, header),
        None => (0, header),
    };
    let (name, kind) = header.split_once(':').unwrap_or((header, "string"));
    let format = if matches!(name, "Name" | "Attacher") { "name" } else { "" };
    Some(Column { name, kind, format, priority, description, cell: parse_cell(cell)? })
}

fn parse_cell(text: &'static str) -> Option<Cell> {
    if let Some(path) = text.strip_prefix('.') {
        let (path, default) = path.split_once(" or ").unwrap_or((path, ""));
        return Some(Cell::Text(path, default));
    }
    if let Some(name) = text.strip_prefix('!') {
        return rule::find(name).map(Cell::Rule);
    }
    let mut words = text.split(' ');
    let cell = words.next()?;
    let mut path = || words.next()?.strip_prefix('.');
    Some(match cell {
        "name" => Cell::Name,
        "age" => Cell::Age(path().unwrap_or("metadata.creationTimestamp")),
        "int" => Cell::Int(path()?),
        "bool" => Cell::Bool(path()?, text.ends_with(" or true")),
        "count" => Cell::Count(std::iter::from_fn(path).collect()),
        "join" => Cell::Join(path()?, words.next()),
        "ratio" => Cell::Ratio(path()?, path()?),
        "labels" => Cell::Labels(path()?),
        "selector" => Cell::Selector(path()?),
        _ => return None,
    })
}

/// The value at a path of keys and indices; `null` if there is none.
pub(super) fn dig<'a>(value: &'a Value, path: &str) -> &'a Value {
    let mut here = value;
    for step in path.split('.') {
        let next = match here {
            Value::Array(list) => step.parse::<usize>().ok().and_then(|at| list.get(at)),
            _ => here.get(step),
        };
        match next {
            Some(next) => here = next,
            None => return &Value::Null,
        }
    }
    here
}

/// The text at a path; empty if there is none.
pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    dig(value, path).as_str().unwrap_or_default()
}

/// The number at a path; 0 if there is none.
pub(super) fn int(value: &Value, path: &str) -> i64 {
    dig(value, path).as_i64().unwrap_or_default()
}

/// The list at a path; empty if there is none.
pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    dig(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// A scalar as text; `None` for what is not there, or empty.
pub(super) fn shown(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Values, or one field of each, with commas.
pub(super) fn join(items: &[Value], field: Option<&str>) -> String {
    let values = items.iter().map(|item| field.map_or(item, |field| dig(item, field)));
    values.map(|value| value.as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
}

fn len(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_parsed() {
        let columns = parse(FACTS).expect("columns.txt");
        assert!(columns.len() > 50);
        for resource in crate::builtin::registry().resources() {
            let columns = of_kind(&resource.group, &resource.kind);
            assert!(columns.iter().any(|column| column.format == "name"), "{}", resource.kind);
        }
        let kinds: Vec<String> =
            crate::builtin::registry().resources().iter().map(|r| r.qualified_kind()).collect();
        for kind in columns.keys().filter(|kind| &***kind != "Scale.autoscaling") {
            assert!(kinds.iter().any(|known| **known == **kind), "{kind} is not a built-in kind");
        }
    }

    #[test]
    fn cells_of_an_empty_object_do_not_panic() {
        let now = Timestamp::UNIX_EPOCH;
        let odd = [
            json!(null),
            json!({}),
            json!([]),
            json!({"spec": [1], "status": "x", "metadata": {"name": 1}}),
        ];
        for (kind, columns) in COLUMNS.iter() {
            for object in &odd {
                let cells: Vec<Value> =
                    columns.iter().map(|column| column.cell(object, now)).collect();
                assert!(cells.iter().all(|cell| !cell.is_null()), "{kind}: {cells:?}");
            }
        }
    }
}
