//! Checks that a schema is structural: every field has a type outside `allOf`, `anyOf`, `oneOf` and
//! `not`, and those only add limits to fields that are declared outside them.

use serde_json::{Value, json};

use super::keywords::Keywords;
use super::{MAX_DEPTH, check_defaults, check_keywords, pattern};
use crate::FieldError;

/// The errors of a schema; `path` is its path (`spec.validation.openAPIV3Schema`).
pub fn check_schema(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if Keywords::of(schema).nullable {
        let text = "nullable cannot be true at the root";
        errors.push(FieldError::forbidden(format!("{path}.nullable"), text));
    }
    // If a schema cannot be converted, only its unsupported keywords are reported.
    if !is_unconvertible(schema, 0) {
        let mut found = Vec::new();
        check(schema, Level::Root, path, 0, &mut found);
        let keywords = Keywords::of(schema);
        complete(&keywords, &keywords, path, path, 0, &mut found);
        found.sort_by_cached_key(ToString::to_string);
        if found.is_empty() {
            found = check_defaults::check(schema, path);
        }
        errors.append(&mut found);
    }
    errors.extend(check_keywords::check(schema, path));
    errors
}

/// All schemas directly below a schema.
pub(super) fn children<'a>(keywords: &Keywords<'a>) -> impl Iterator<Item = &'a Value> + use<'a> {
    let fields = keywords.properties().map(|(_, field)| field);
    let alternatives = keywords.all_of.iter().chain(keywords.any_of).chain(keywords.one_of);
    let others = [keywords.items, keywords.additional_schema(), keywords.not];
    fields.chain(alternatives).chain(others.into_iter().flatten())
}

fn is_unconvertible(schema: &Value, depth: usize) -> bool {
    let keywords = Keywords::of(schema);
    depth <= MAX_DEPTH
        && (keywords.is_unconvertible()
            || children(&keywords).any(|child| is_unconvertible(child, depth + 1)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

fn check(schema: &Value, level: Level, path: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > MAX_DEPTH {
        return;
    }
    let keywords = Keywords::of(schema);
    if keywords.type_ == "array" && keywords.items.is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(items) = keywords.items {
        check(items, Level::Item, &format!("{path}.items"), depth + 1, errors);
    }
    for (name, field) in keywords.properties() {
        check(field, Level::Field, &format!("{path}.properties[{name}]"), depth + 1, errors);
    }
    if keywords.additional_properties.is_some() && level == Level::Root {
        let field = format!("{path}.additionalProperties");
        errors.push(FieldError::forbidden(field, "must not be used at the root"));
    }
    if let Some(values) = keywords.additional_schema() {
        check(values, Level::Field, &format!("{path}.additionalProperties"), depth + 1, errors);
    }
    check_extensions(&keywords, path, errors);
    check_limits(&keywords, SkipAnyOf::IfIntOrString, path, depth, errors);
    check_type(&keywords, level, path, errors);
    check_meta(&keywords, level, path, errors);
}

fn check_extensions(keywords: &Keywords<'_>, path: &str, errors: &mut Vec<FieldError>) {
    if !keywords.int_or_string {
        return;
    }
    let set = [
        ("x-kubernetes-preserve-unknown-fields", keywords.preserves()),
        ("x-kubernetes-embedded-resource", keywords.embedded_resource),
    ];
    for (name, _) in set.into_iter().filter(|(_, set)| *set) {
        let text = "must be false if x-kubernetes-int-or-string is true";
        errors.push(FieldError::invalid(format!("{path}.{name}"), &true.into(), text));
    }
}

fn check_type(keywords: &Keywords<'_>, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let field = || format!("{path}.type");
    let type_ = keywords.type_;
    if keywords.embedded_resource && type_ != "object" {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match type_ {
            "" => FieldError::required(field(), text),
            other => FieldError::invalid(field(), &other.into(), text),
        });
    } else if type_.is_empty() && !keywords.int_or_string && !keywords.preserves() {
        let text = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(field(), text));
    }
    if level == Level::Root && !type_.is_empty() && type_ != "object" {
        errors.push(FieldError::invalid(field(), &type_.into(), "must be object at the root"));
    }
}

/// Checks `apiVersion`, `kind` and `metadata`, which every object has: a schema can hardly restrict
/// them.
fn check_meta(keywords: &Keywords<'_>, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let embedded = keywords.embedded_resource;
    if embedded && keywords.additional_properties.is_some() {
        let text = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(format!("{path}.additionalProperties"), text));
    }
    if embedded && !keywords.preserves() && keywords.properties().next().is_none() {
        let text = "must not be empty if x-kubernetes-embedded-resource is true without \
                    x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(format!("{path}.properties"), text));
    }
    if level != Level::Root && !embedded {
        return;
    }
    for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(type_) = keywords.property(name).map(|field| Keywords::of(field).type_) else {
            continue;
        };
        if type_ != wanted {
            let field = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(field, &type_.into(), &format!("must be {wanted}")));
        }
    }
    let metadata = keywords.property("metadata").filter(|_| level == Level::Root);
    if metadata.is_some_and(|metadata| !only_names(metadata)) {
        let text = "must not specify anything other than name and generateName, but metadata is \
                    implicitly specified";
        errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), text));
    }
}

fn only_names(metadata: &Value) -> bool {
    let mut keys = metadata.as_object().into_iter().flatten();
    keys.all(|(key, value)| match key.as_str() {
        "type" | "default" => true,
        "properties" => {
            let mut names = value.as_object().into_iter().flatten();
            names.all(|(name, _)| matches!(name.as_str(), "name" | "generateName"))
        }
        _ => value.is_null(),
    })
}

/// Where `anyOf` may repeat the two types of an int-or-string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SkipAnyOf {
    /// In this schema and in the first `allOf`.
    IfIntOrString,
    /// In this schema.
    Here,
    No,
}

fn is_int_or_string(any_of: &[Value]) -> bool {
    matches!(any_of, [a, b] if *a == json!({"type": "integer"}) && *b == json!({"type": "string"}))
}

fn check_limits(
    keywords: &Keywords<'_>,
    skip: SkipAnyOf,
    path: &str,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    let skips = skip != SkipAnyOf::No && is_int_or_string(keywords.any_of);
    for (at, schema) in keywords.any_of.iter().enumerate().filter(|_| !skips) {
        check_nested(schema, SkipAnyOf::No, &format!("{path}.anyOf[{at}]"), depth + 1, errors);
    }
    for (at, schema) in keywords.all_of.iter().enumerate() {
        let first = at == 0 && skip == SkipAnyOf::IfIntOrString;
        let skip = if first { SkipAnyOf::Here } else { SkipAnyOf::No };
        check_nested(schema, skip, &format!("{path}.allOf[{at}]"), depth + 1, errors);
    }
    for (at, schema) in keywords.one_of.iter().enumerate() {
        check_nested(schema, SkipAnyOf::No, &format!("{path}.oneOf[{at}]"), depth + 1, errors);
    }
    if let Some(not) = keywords.not {
        check_nested(not, SkipAnyOf::No, &format!("{path}.not"), depth + 1, errors);
    }
    if !keywords.pattern.is_empty()
        && let Some(problem) = pattern::problem(keywords.pattern)
    {
        let text = format!("must be a valid regular expression, but isn't: {problem}");
        let field = format!("{path}.pattern");
        errors.push(FieldError::invalid(field, &keywords.pattern.into(), &text));
    }
}

/// Checks a schema inside `allOf`, `anyOf`, `oneOf` or `not`, which may only add limits.
fn check_nested(
    schema: &Value,
    skip: SkipAnyOf,
    path: &str,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    if depth > MAX_DEPTH {
        return;
    }
    let keywords = Keywords::of(schema);
    check_limits(&keywords, skip, path, depth, errors);
    if let Some(items) = keywords.items {
        check_nested(items, SkipAnyOf::No, &format!("{path}.items"), depth + 1, errors);
    }
    for (name, field) in keywords.properties() {
        let path = format!("{path}.properties[{name}]");
        check_nested(field, SkipAnyOf::No, &path, depth + 1, errors);
    }
    for (name, present, wanted) in forbidden_when_nested(&keywords) {
        if present {
            let text = format!("must be {wanted} to be structural");
            errors.push(FieldError::forbidden(format!("{path}.{name}"), &text));
        }
    }
    if keywords.property("metadata").is_some() {
        let text = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), text));
    }
}

fn forbidden_when_nested(keywords: &Keywords<'_>) -> [(&'static str, bool, &'static str); 13] {
    [
        ("type", !keywords.type_.is_empty(), "empty"),
        ("additionalProperties", keywords.additional_properties.is_some(), "undefined"),
        ("default", keywords.default.is_some(), "undefined"),
        ("title", !keywords.title.is_empty(), "empty"),
        ("description", !keywords.description.is_empty(), "empty"),
        ("nullable", keywords.nullable, "false"),
        ("x-kubernetes-preserve-unknown-fields", keywords.preserves(), "false"),
        ("x-kubernetes-embedded-resource", keywords.embedded_resource, "false"),
        ("x-kubernetes-int-or-string", keywords.int_or_string, "false"),
        ("x-kubernetes-list-map-keys", !keywords.list_map_keys.is_empty(), "empty"),
        ("x-kubernetes-list-type", keywords.list_type.is_some(), "undefined"),
        ("x-kubernetes-map-type", keywords.map_type.is_some(), "undefined"),
        ("x-kubernetes-validations", !keywords.rules.is_empty(), "empty"),
    ]
}

/// Checks that every field in an alternative is declared outside it.
fn complete(
    nested: &Keywords<'_>,
    declared: &Keywords<'_>,
    at: &str,
    said: &str,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    let lists = [("allOf", nested.all_of), ("anyOf", nested.any_of), ("oneOf", nested.one_of)];
    for (name, schemas) in lists {
        for (index, schema) in schemas.iter().enumerate() {
            let said = format!("{said}.{name}[{index}]");
            complete_nested(schema, declared, at, &said, depth + 1, errors);
        }
    }
    if let Some(not) = nested.not {
        complete_nested(not, declared, at, &format!("{said}.not"), depth + 1, errors);
    }
}

fn complete_nested(
    schema: &Value,
    declared: &Keywords<'_>,
    at: &str,
    said: &str,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    if depth > MAX_DEPTH {
        return;
    }
    let nested = Keywords::of(schema);
    complete(&nested, declared, at, said, depth, errors);
    let items = nested.items.map(|items| ("items".to_owned(), items, declared.items));
    let fields = nested
        .properties()
        .map(|(name, field)| (format!("properties[{name}]"), field, declared.property(name)));
    for (name, below, counterpart) in items.into_iter().chain(fields) {
        let (at, said) = (format!("{at}.{name}"), format!("{said}.{name}"));
        match counterpart {
            Some(counterpart) => {
                let counterpart = Keywords::of(counterpart);
                complete_nested(below, &counterpart, &at, &said, depth + 1, errors);
            }
            None => {
                errors.push(FieldError::required(at, &format!("because it is defined in {said}")));
            }
        }
    }
}
