//! The schema of a kind: its fields, their types, and how lists and maps merge.
//!
//! Built-in kinds (from a table of facts, see `parse`) and custom resources (from their structural
//! schema) use the same structure. A [`Node`] is a position in it. All code that walks an object
//! (decoding, patching, server-side apply, pruning) walks a `Node` in parallel.

mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use parse::ParseTypesError;

/// A set of named structs, which may refer to each other, even recursively.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Types {
    structs: Vec<Struct>,
    by_name: BTreeMap<Box<str>, StructId>,
}

/// The index of a struct in its [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructId(u32);

/// An object with known fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Struct {
    /// For example `core.v1.ServiceSpec`.
    pub name: Box<str>,
    /// Sorted by name.
    pub fields: Vec<Field>,
    /// Server-side apply owns and replaces it as a whole.
    pub atomic: bool,
    /// Unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its JSON name.
    pub name: Box<str>,
    /// The protobuf field number; 0 if there is none.
    pub number: u32,
    /// Its type.
    pub shape: Shape,
    /// Whether an empty value is written.
    pub presence: Presence,
    /// An absent value differs from a zero value (`*int32` in Go).
    pub pointer: bool,
    /// Strategic merge: `patchStrategy` contains `merge`.
    pub merge: bool,
    /// Strategic merge: `patchMergeKey`.
    pub merge_key: Option<Box<str>>,
    /// Strategic merge: `patchStrategy` contains `retainKeys`.
    pub retain_keys: bool,
    /// The declared default (`+default` in Go, `default` in a structural schema).
    pub default: Option<Value>,
}

impl Field {
    pub(crate) fn new(name: &str, shape: Shape, presence: Presence, pointer: bool) -> Self {
        Self {
            name: name.into(),
            number: 0,
            shape,
            presence,
            pointer,
            merge: false,
            merge_key: None,
            retain_keys: false,
            default: None,
        }
    }

    /// Whether Go writes the field even if its value is zero.
    pub(crate) fn is_always_written(&self) -> bool {
        match self.presence {
            Presence::Always => true,
            Presence::OmitEmpty => !self.pointer && self.shape.is_go_struct(),
            Presence::OmitZero => false,
        }
    }
}

/// Whether an empty value is written (Go's struct tags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// `omitempty`: a zero value is not written, except that of an inlined struct.
    OmitEmpty,
    /// `omitzero`: a zero value is not written, including that of a struct.
    OmitZero,
    /// An empty value is written as the zero value or `null`.
    Always,
}

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A string.
    String,
    /// `true` or `false`.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A floating point number.
    Float,
    /// Base64 text.
    Bytes,
    /// RFC 3339, in whole seconds.
    Time,
    /// RFC 3339, in microseconds.
    MicroTime,
    /// For example `1h2m3s`.
    Duration,
    /// For example `100m`, `1Gi`.
    Quantity,
    /// A number or a string.
    IntOrString,
    /// Any JSON value.
    Any,
    /// An object with known fields.
    Struct(StructId),
    /// A list.
    List(Box<List>),
    /// An object with arbitrary keys.
    Map(Box<Map>),
}

impl Shape {
    /// Types that `omitempty` does not omit, because a Go struct is never empty.
    pub(crate) fn is_go_struct(&self) -> bool {
        use Shape::{Any, Duration, IntOrString, MicroTime, Quantity, Struct, Time};
        matches!(self, Struct(_) | Time | MicroTime | Duration | Quantity | IntOrString | Any)
    }
}

/// A list.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// The type of its items.
    pub items: Shape,
    /// How server-side apply treats it.
    pub list_type: ListType,
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    /// The list is owned and replaced as a whole.
    Atomic,
    /// A list of scalars, each with its own owners.
    Set,
    /// A list of objects, identified by these keys.
    Map(Box<[Box<str>]>),
}

/// An object with arbitrary keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The type of its values.
    pub values: Shape,
    /// Server-side apply owns and replaces it as a whole.
    pub atomic: bool,
}

/// A type, with the set of types that it refers to.
#[derive(Clone, Debug)]
pub struct Schema {
    types: Arc<Types>,
    root: Shape,
}

impl Schema {
    /// The schema of this type within a set of types.
    pub fn new(types: Arc<Types>, root: Shape) -> Self {
        Self { types, root }
    }

    /// The root node.
    pub fn node(&self) -> Node<'_> {
        Node { types: &self.types, shape: &self.root, field: None }
    }
}

/// A position in a schema. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    types: &'a Types,
    shape: &'a Shape,
    field: Option<&'a Field>,
}

impl<'a> Node<'a> {
    /// The type at this position.
    pub fn shape(self) -> &'a Shape {
        self.shape
    }

    /// The struct at this position, if it is one.
    pub fn as_struct(self) -> Option<&'a Struct> {
        match self.shape {
            Shape::Struct(id) => Some(self.types.get(*id)),
            _ => None,
        }
    }

    /// The struct field that leads to this position.
    pub fn declared(self) -> Option<&'a Field> {
        self.field
    }

    /// The position below a key: a struct's field, or a map's value.
    pub fn child(self, key: &str) -> Option<Self> {
        match self.shape {
            Shape::Struct(id) => {
                let field = self.types.get(*id).field(key)?;
                Some(Self { shape: &field.shape, field: Some(field), ..self })
            }
            Shape::Map(map) => Some(Self { shape: &map.values, field: None, ..self }),
            Shape::Any => Some(Self { field: None, ..self }),
            _ => None,
        }
    }

    /// The position of a list's items.
    pub fn items(self) -> Option<Self> {
        match self.shape {
            Shape::List(list) => Some(Self { shape: &list.items, field: None, ..self }),
            Shape::Any => Some(Self { field: None, ..self }),
            _ => None,
        }
    }

    /// How server-side apply treats the list at this position.
    pub fn list_type(self) -> &'a ListType {
        match self.shape {
            Shape::List(list) => &list.list_type,
            _ => &ListType::Atomic,
        }
    }

    /// Whether server-side apply owns the object at this position as a whole.
    pub(crate) fn is_atomic_map(self) -> bool {
        match self.shape {
            Shape::Struct(id) => self.types.get(*id).atomic,
            Shape::Map(map) => map.atomic,
            _ => false,
        }
    }
}

impl Struct {
    /// The field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|i| &self.fields[i])
    }
}

impl Types {
    /// Adds a struct. If two structs have the same name, lookups by name find the later one.
    pub fn add(&mut self, mut one: Struct) -> StructId {
        one.fields.sort_by(|a, b| a.name.cmp(&b.name));
        let id = StructId(u32::try_from(self.structs.len()).expect("fewer than 2^32 structs"));
        self.by_name.insert(one.name.clone(), id);
        self.structs.push(one);
        id
    }

    /// Adds a struct of another set, with all structs that it refers to. A struct whose name is
    /// already known counts as the same.
    pub fn import(&mut self, from: &Self, id: StructId) -> StructId {
        let one = from.get(id);
        if let Some(known) = self.find(&one.name) {
            return known;
        }
        // The struct is added before its fields, because they may refer back to it.
        let added = self.add(Struct { fields: Vec::new(), ..one.clone() });
        let imported = |field: &Field| {
            let shape = self.import_shape(from, &field.shape);
            Field { shape, ..field.clone() }
        };
        let fields: Vec<Field> = one.fields.iter().map(imported).collect();
        self.structs[added.0 as usize].fields = fields;
        added
    }

    fn import_shape(&mut self, from: &Self, shape: &Shape) -> Shape {
        match shape {
            Shape::Struct(id) => Shape::Struct(self.import(from, *id)),
            Shape::List(list) => {
                let items = self.import_shape(from, &list.items);
                Shape::List(Box::new(List { items, list_type: list.list_type.clone() }))
            }
            Shape::Map(map) => {
                let values = self.import_shape(from, &map.values);
                Shape::Map(Box::new(Map { values, atomic: map.atomic }))
            }
            other => other.clone(),
        }
    }

    /// The struct with this index.
    pub fn get(&self, id: StructId) -> &Struct {
        &self.structs[id.0 as usize]
    }

    /// The struct with this name.
    pub fn find(&self, name: &str) -> Option<StructId> {
        self.by_name.get(name).copied()
    }

    /// The same types with more fields in one struct, one field per line as in the text form. A
    /// field with the name of an existing one replaces it.
    ///
    /// # Errors
    /// The first line that cannot be parsed; line 0 if there is no such struct.
    pub fn with_fields(&self, struct_name: &str, lines: &str) -> Result<Self, ParseTypesError> {
        let more = parse::parse_fields(lines, &self.by_name)?;
        let mut types = self.clone();
        let found = self.find(struct_name).and_then(|id| types.structs.get_mut(id.0 as usize));
        let problem = || ParseTypesError { line: 0, problem: format!("no struct {struct_name}") };
        let fields = &mut found.ok_or_else(problem)?.fields;
        fields.retain(|old| more.iter().all(|new| new.name != old.name));
        fields.extend(more);
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(types)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_can_be_added_to_one_struct() {
        let types = Types::parse("struct a.B\n  x 1 string\n  z 2 int32\nstruct a.C\n").unwrap();
        let more = types.with_fields("a.B", "y 3 []a.C omitempty\n\nx 4 bool\n").unwrap();
        let fields = &more.get(more.find("a.B").unwrap()).fields;
        let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["x", "y", "z"]);
        assert_eq!(fields[0].shape, Shape::Bool);
        assert_eq!(types.with_fields("a.D", "").unwrap_err().line, 0);
        assert_eq!(types.with_fields("a.B", "y 3 string\ny").unwrap_err().line, 2);
    }
}
