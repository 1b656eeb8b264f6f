//! Validates the values of an object against a schema.
//!
//! It follows kube-openapi's validator: the same checks in the same order with the same messages,
//! and the same choice of the alternative whose errors are shown (the one with the most passed
//! checks). With the old object, unchanged values are accepted: a schema that became stricter must
//! not block writes to other fields.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::slice;

use serde_json::{Map, Value};

use super::check_keywords::TYPES;
use super::keywords::Keywords;
use super::numbers::{Num, is_whole, same};
use super::{MAX_DEPTH, formats, pattern};
use crate::{FieldError, FieldErrorKind};

/// The field of an error about a whole object.
pub(super) const ROOT: &str = "<nil>";

/// The errors in the types and values of an object or of a part of it; `prefix` is the path of that
/// part (`status`).
pub fn validate_values(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    prefix: &str,
) -> Vec<FieldError> {
    let mut check = Check { prefix, path: String::new(), depth: 0, errors: Vec::new() };
    check.value(schema, value, old);
    check.errors
}

pub(super) struct Check<'a> {
    prefix: &'a str,
    pub(super) path: String,
    depth: usize,
    pub(super) errors: Vec<FieldError>,
}

impl Check<'_> {
    /// Checks one value. Returns how many checks passed.
    fn value(&mut self, schema: &Value, value: &Value, old: Option<&Value>) -> usize {
        if self.depth > MAX_DEPTH || old == Some(value) {
            return 1;
        }
        let keywords = Keywords::of(schema);
        if value.is_null() {
            return self.null(&keywords, value);
        }
        let format = formats::effective(&keywords);
        let mut passed = 3;
        if !types(&keywords).is_empty() || !format.is_empty() {
            passed += 1 + usize::from(self.type_(&keywords, format, value));
        }
        passed += self.alternatives(&keywords, value, old);
        match value {
            Value::String(text) => {
                self.string(&keywords, text);
                self.format(format, text);
                passed += 1;
            }
            Value::Number(number) => {
                self.number(&keywords, Num::of(number), value);
                passed += 2;
            }
            Value::Array(items) => passed += 2 + self.array(&keywords, items, old),
            _ => {}
        }
        self.enum_(&keywords, value);
        if let Value::Object(object) = value {
            passed += 1 + self.object(&keywords, object, old);
        }
        passed
    }

    fn null(&mut self, keywords: &Keywords<'_>, value: &Value) -> usize {
        let wanted = types(keywords);
        let wrong = !wanted.is_empty() && !keywords.nullable;
        if wrong {
            self.invalid_type(&wanted.join(","), "null");
        }
        self.enum_(keywords, value);
        usize::from(!wrong)
    }

    fn type_(&mut self, keywords: &Keywords<'_>, format: &str, value: &Value) -> bool {
        let wanted = types(keywords);
        let (is, its_format) = json_type(value);
        let is_text = matches!(value, Value::String(_) | Value::Array(_));
        let numeric = wanted.contains(&"number") || wanted.contains(&"integer");
        let fits = wanted.contains(&is)
            || (is == "integer" && wanted.contains(&"number"))
            || (is == "number"
                && wanted.contains(&"integer")
                && is_whole(value.as_f64().unwrap_or(f64::NAN)));
        if !is_text && !format.is_empty() && !fits && its_format != format {
            self.invalid_type(format, its_format);
            return false;
        }
        // For strings the check of the format decides.
        let left_to_format = is_text && !numeric && !format.is_empty();
        if !fits && !left_to_format {
            self.invalid_type(&wanted.join(","), is);
            return false;
        }
        true
    }

    fn string(&mut self, keywords: &Keywords<'_>, text: &str) {
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(most) = keywords.max_length.filter(|most| length() > *most) {
            let message = format!("Too long: may not be more than {most} bytes");
            self.push(FieldErrorKind::TooLong, message);
            return;
        }
        if let Some(least) = keywords.min_length.filter(|least| length() < *least) {
            self.wrong(&text.into(), &format!("should be at least {least} chars long"));
            return;
        }
        if keywords.pattern.is_empty() {
            return;
        }
        match pattern::matches(keywords.pattern, text) {
            Some(true) => {}
            Some(false) => {
                self.wrong(&text.into(), &format!("should match '{}'", keywords.pattern));
            }
            None => {
                let reason = pattern::problem(keywords.pattern).unwrap_or_default();
                let wanted = keywords.pattern;
                let text_ = format!("should match '{wanted}, but pattern is invalid: {reason}'");
                self.wrong(&text.into(), &text_);
            }
        }
    }

    fn format(&mut self, format: &str, text: &str) {
        if !format.is_empty() && !formats::has_format(format, text) {
            self.invalid_type(format, text);
        }
    }

    fn number(&mut self, keywords: &Keywords<'_>, number: Num, value: &Value) {
        if let Some(kind) = out_of_range(keywords, number) {
            self.composite(&format!("Checked value must be of type {kind} in {}", self.path));
        }
        if let Some(factor) = keywords.multiple_of.map(|factor| number.like(factor)) {
            if factor.as_f64() <= 0.0 {
                let name = &self.path;
                let text =
                    format!("factor MultipleOf declared for {name} must be positive: {factor}");
                let message = format!("Invalid value: {factor}: {text}");
                self.push(FieldErrorKind::Invalid, message);
            } else if !number.is_multiple_of(factor) {
                self.wrong(value, &format!("should be a multiple of {factor}"));
            }
        }
        for (bound, exclusive, beyond, words) in [
            (keywords.minimum, keywords.exclusive_minimum, Ordering::Less, "greater than"),
            (keywords.maximum, keywords.exclusive_maximum, Ordering::Greater, "less than"),
        ] {
            let Some(bound) = bound.map(|bound| number.like(bound)) else { continue };
            let order = number.compare(bound);
            if order == Some(beyond) || (exclusive && order == Some(Ordering::Equal)) {
                let or_equal = if exclusive { "" } else { " or equal to" };
                self.wrong(value, &format!("should be {words}{or_equal} {bound}"));
            }
        }
    }

    fn array(&mut self, keywords: &Keywords<'_>, items: &[Value], old: Option<&Value>) -> usize {
        let mut passed = 0;
        if let Some(schema) = keywords.items {
            let old = old.and_then(Value::as_array).filter(|_| keywords.list_type == Some("map"));
            let old = by_keys(keywords, old.map(Vec::as_slice).unwrap_or_default());
            for (at, item) in items.iter().enumerate() {
                let before = old.get(&keys_of(keywords, item)).copied();
                let length = self.path.len();
                self.path.push_str(&format!("[{at}]"));
                passed += self.deeper(schema, item, before);
                self.path.truncate(length);
            }
        }
        let size = count(items.len());
        if let Some(least) = keywords.min_items.filter(|least| size < *least) {
            self.wrong(&size.into(), &format!("should have at least {least} items"));
        }
        self.too_many(size, keywords.max_items);
        if keywords.unique_items && has_duplicates(items) {
            self.wrong(&"".into(), "shouldn't contain duplicates");
        }
        passed
    }

    fn object(
        &mut self,
        keywords: &Keywords<'_>,
        object: &Map<String, Value>,
        old: Option<&Value>,
    ) -> usize {
        let size = count(object.len());
        if let Some(least) = keywords.min_properties.filter(|least| size < *least) {
            self.wrong(&size.into(), &format!("should have at least {least} properties"));
        }
        self.too_many(size, keywords.max_properties);
        let mut passed = self.additional(keywords, object, old);
        for (name, schema) in keywords.properties() {
            if let Some(value) = object.get(name) {
                let dot = if self.path.is_empty() { "" } else { "." };
                passed += self.below(dot, name, schema, value, old);
            }
        }
        for name in keywords.required().filter(|name| !object.contains_key(*name)) {
            let field = self.field(&format!("{}.{name}", self.path));
            self.errors.push(FieldError::required(field, ""));
        }
        passed
    }

    /// Checks the keys that are not declared fields.
    fn additional(
        &mut self,
        keywords: &Keywords<'_>,
        object: &Map<String, Value>,
        old: Option<&Value>,
    ) -> usize {
        let Some(schema) = keywords.additional_properties.filter(|s| **s != Value::Bool(true))
        else {
            return 0;
        };
        let mut passed = 0;
        for (key, value) in object.iter().filter(|(key, _)| keywords.property(key).is_none()) {
            if schema.is_object() {
                passed += self.below(".", key, schema, value, old);
            } else {
                let text = format!("{}.{key} in body is a forbidden property", self.path);
                let message = format!("Invalid value: {key:?}: {text}");
                self.push(FieldErrorKind::Invalid, message);
            }
        }
        passed
    }

    fn below(
        &mut self,
        dot: &str,
        key: &str,
        schema: &Value,
        value: &Value,
        old: Option<&Value>,
    ) -> usize {
        let length = self.path.len();
        self.path.push_str(dot);
        self.path.push_str(key);
        let passed = self.deeper(schema, value, old.and_then(|old| old.get(key)));
        self.path.truncate(length);
        passed
    }

    pub(super) fn deeper(&mut self, schema: &Value, value: &Value, old: Option<&Value>) -> usize {
        self.depth += 1;
        let passed = self.value(schema, value, old);
        self.depth -= 1;
        passed
    }

    fn enum_(&mut self, keywords: &Keywords<'_>, value: &Value) {
        // `null` is never valid, even if the enum lists it.
        let listed = || keywords.enum_.iter().any(|one| !one.is_null() && same(one, value));
        if keywords.enum_.is_empty() || listed() {
            return;
        }
        let texts = keywords.enum_.iter().map(|one| match one {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        let texts: Vec<String> = texts.collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let error = FieldError::not_supported(self.field(&self.path), value, &texts);
        self.errors.push(error);
    }

    fn too_many(&mut self, size: i64, most: Option<i64>) {
        if let Some(most) = most.filter(|most| size > *most) {
            let message = format!("Too many: {size}: must have at most {most} items");
            self.push(FieldErrorKind::TooMany, message);
        }
    }

    fn invalid_type(&mut self, wanted: &str, is: &str) {
        let shown = Value::from(is);
        let name = &self.path;
        let message =
            format!("Invalid value: {shown}: {name} in body must be of type {wanted}: {shown}");
        self.push(FieldErrorKind::TypeInvalid, message);
    }

    /// Adds an error such as `Invalid value: 11: spec.n in body should be …`.
    fn wrong(&mut self, value: &Value, text: &str) {
        let message = format!("Invalid value: {value}: {} in body {text}", self.path);
        self.push(FieldErrorKind::Invalid, message);
    }

    /// Adds an error that names its path only in its message.
    pub(super) fn composite(&mut self, text: &str) {
        let field = if self.prefix.is_empty() { ROOT } else { self.prefix };
        self.errors.push(FieldError::invalid(field, &"".into(), text));
    }

    fn push(&mut self, kind: FieldErrorKind, message: String) {
        let field = self.field(&self.path);
        self.errors.push(FieldError::new(kind, field, message));
    }

    fn field(&self, path: &str) -> String {
        let path = path.strip_prefix('.').unwrap_or(path);
        match (self.prefix, path) {
            ("", "") => ROOT.to_owned(),
            ("", path) => path.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, path) => format!("{prefix}.{path}"),
        }
    }
}

fn types<'a>(keywords: &Keywords<'a>) -> &'a [&'a str] {
    if keywords.int_or_string {
        return &["integer", "string"];
    }
    match keywords.type_ {
        "" => &[],
        type_ => TYPES.iter().find(|known| **known == type_).map_or(&["unknown"], slice::from_ref),
    }
}

/// The JSON type of a value, and its format in Go.
fn json_type(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(number) => match Num::of(number) {
            Num::Int(_) => ("integer", "int64"),
            Num::Float(_) => ("number", "float64"),
        },
    }
}

/// The type whose range a number exceeds.
fn out_of_range(keywords: &Keywords<'_>, number: Num) -> Option<String> {
    let format = formats::effective(keywords);
    let fits = match (keywords.type_, format, number) {
        _ if keywords.int_or_string => true,
        ("integer", "int32", Num::Int(int)) => i32::try_from(int).is_ok(),
        ("integer", _, Num::Int(_)) => true,
        ("integer", "int32", Num::Float(float)) => {
            float.fract() == 0.0 && float.abs() <= f64::from(i32::MAX)
        }
        ("integer", _, Num::Float(float)) => float.fract() == 0.0 && float.abs() < i64::MAX as f64,
        ("number", "float", number) => number.as_f64().abs() <= f64::from(f32::MAX),
        _ => true,
    };
    let type_ = keywords.type_;
    (!fits).then(|| match format {
        "" => format!("{type_} (default format)"),
        format => format!("{type_} with format {format}"),
    })
}

/// The entries of an old list of type `map`, by their keys.
fn by_keys<'a>(keywords: &Keywords<'_>, old: &'a [Value]) -> BTreeMap<String, &'a Value> {
    old.iter().map(|entry| (keys_of(keywords, entry), entry)).collect()
}

fn keys_of(keywords: &Keywords<'_>, entry: &Value) -> String {
    let mut keys = String::new();
    for key in keywords.map_keys() {
        let value = entry.get(key).unwrap_or(&Value::Null);
        keys.push_str(&format!("{value},"));
    }
    keys
}

fn has_duplicates(items: &[Value]) -> bool {
    let mut texts: Vec<String> = items.iter().map(Value::to_string).collect();
    texts.sort_unstable();
    texts.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
