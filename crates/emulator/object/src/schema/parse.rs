//! The text form of a set of types: Kubernetes' structs, one field per line.
//!
//! ```text
//! struct core.v1.ServiceSpec
//!   ports 1 []core.v1.ServicePort omitempty list=map:port,protocol merge=port
//!   selector 2 map[]string omitempty map=atomic
//!   replicas 1 *int32 omitempty default=1
//! ```
//!
//! After the name come the protobuf number and the type: `*` for a pointer, `[]` for a list,
//! `map[]` for a map, then `string bool int32 int64 float bytes time microtime duration quantity
//! intorstring any` or the name of a struct. Then, in any order: `omitempty`, `omitzero` (without
//! both, the field is always written); `list=atomic|set|map:key,key`; `map=atomic`; `merge` or
//! `merge=key`; `retainkeys`; `default=<json without blanks>`. `struct NAME atomic` declares an
//! atomic struct.

use std::collections::BTreeMap;

use super::{Field, List, ListType, Map, Presence, Shape, Struct, StructId, Types};

/// Why a line of the text form is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseTypesError {
    /// The line number, counted from 1.
    pub line: usize,
    /// The reason.
    pub problem: String,
}

impl Types {
    /// Parses the text form.
    ///
    /// # Errors
    /// The first line that cannot be parsed, or that names an undeclared struct.
    pub fn parse(text: &str) -> Result<Self, ParseTypesError> {
        let by_name = declared_names(text);
        let mut structs: Vec<Struct> = Vec::with_capacity(by_name.len());
        for (at, line) in text.lines().enumerate() {
            let fail = |problem| ParseTypesError { line: at + 1, problem };
            let line = line.split(" #").next().unwrap_or(line).trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(head) = line.strip_prefix("struct ") {
                structs.push(parse_struct(head));
            } else {
                let field = parse_field(line, &by_name).map_err(fail)?;
                let last =
                    structs.last_mut().ok_or_else(|| fail("a field before any struct".into()))?;
                last.fields.push(field);
            }
        }
        for one in &mut structs {
            one.fields.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(Self { structs, by_name })
    }
}

/// Parses fields only, without a struct.
pub(super) fn parse_fields(
    lines: &str,
    names: &BTreeMap<Box<str>, StructId>,
) -> Result<Vec<Field>, ParseTypesError> {
    let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let fail = |at: usize, problem| ParseTypesError { line: at + 1, problem };
    lines.map(|(at, line)| parse_field(line, names).map_err(|problem| fail(at, problem))).collect()
}

fn declared_names(text: &str) -> BTreeMap<Box<str>, StructId> {
    let heads = text.lines().filter_map(|line| line.strip_prefix("struct "));
    let names = heads.filter_map(|head| head.split_whitespace().next());
    names.zip(0..).map(|(name, at)| (name.into(), StructId(at))).collect()
}

fn parse_struct(head: &str) -> Struct {
    let mut words = head.split_whitespace();
    let name = words.next().unwrap_or_default().into();
    let (mut atomic, mut preserve_unknown) = (false, false);
    for word in words {
        atomic |= word == "atomic";
        preserve_unknown |= word == "preserve";
    }
    Struct { name, fields: Vec::new(), atomic, preserve_unknown }
}

fn parse_field(line: &str, names: &BTreeMap<Box<str>, StructId>) -> Result<Field, String> {
    let mut words = line.split_whitespace();
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let (name, number, kind) = (next("the name")?, next("the number")?, next("the type")?);
    let (pointer, kind) = match kind.strip_prefix('*') {
        Some(kind) => (true, kind),
        None => (false, kind),
    };
    let number = number.parse().map_err(|_| format!("{number} is no protobuf number"))?;
    let shape = parse_shape(kind, names)?;
    let mut field = Field { number, ..Field::new(name, shape, Presence::Always, pointer) };
    for word in words {
        parse_mark(word, &mut field)?;
    }
    Ok(field)
}

fn parse_shape(text: &str, names: &BTreeMap<Box<str>, StructId>) -> Result<Shape, String> {
    if let Some(items) = text.strip_prefix("[]") {
        let items = parse_shape(items, names)?;
        return Ok(Shape::List(Box::new(List { items, list_type: ListType::Atomic })));
    }
    if let Some(values) = text.strip_prefix("map[]") {
        let values = parse_shape(values, names)?;
        return Ok(Shape::Map(Box::new(Map { values, atomic: false })));
    }
    Ok(match text {
        "string" => Shape::String,
        "bool" => Shape::Bool,
        "int32" => Shape::Int32,
        "int64" => Shape::Int64,
        "float" => Shape::Float,
        "bytes" => Shape::Bytes,
        "time" => Shape::Time,
        "microtime" => Shape::MicroTime,
        "duration" => Shape::Duration,
        "quantity" => Shape::Quantity,
        "intorstring" => Shape::IntOrString,
        "any" => Shape::Any,
        name => Shape::Struct(*names.get(name).ok_or_else(|| format!("no struct {name}"))?),
    })
}

fn parse_mark(word: &str, field: &mut Field) -> Result<(), String> {
    let (mark, value) = word.split_once('=').unwrap_or((word, ""));
    match (mark, &mut field.shape) {
        ("omitempty", _) => field.presence = Presence::OmitEmpty,
        ("omitzero", _) => field.presence = Presence::OmitZero,
        ("list", Shape::List(list)) => list.list_type = parse_list_type(value)?,
        ("map", Shape::Map(map)) if value == "atomic" => map.atomic = true,
        ("merge", _) => {
            field.merge = true;
            field.merge_key = (!value.is_empty()).then(|| value.into());
        }
        ("retainkeys", _) => field.retain_keys = true,
        ("default", _) => {
            let value = serde_json::from_str(value).map_err(|e| format!("{word}: {e}"))?;
            field.default = Some(value);
        }
        _ => return Err(format!("{word} means nothing here")),
    }
    Ok(())
}

fn parse_list_type(text: &str) -> Result<ListType, String> {
    match text.split_once(':') {
        None if text == "atomic" => Ok(ListType::Atomic),
        None if text == "set" => Ok(ListType::Set),
        Some(("map", keys)) => Ok(ListType::Map(keys.split(',').map(Box::from).collect())),
        _ => Err(format!("{text} is no list type")),
    }
}
