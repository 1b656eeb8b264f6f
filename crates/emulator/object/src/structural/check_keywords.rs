//! Checks the OpenAPI keywords of a schema by the rules for CRDs: no references, no contradictions,
//! and list types that fit their items.

use serde_json::Value;

use super::MAX_DEPTH;
use super::keywords::Keywords;
use crate::FieldError;

pub(super) static TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// The errors in the keywords of a schema and of all schemas below it.
pub(super) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new(), depth: 0 };
    walk.schema(schema, path, &Context { root: true, ..Context::default() });
    walk.errors
}

/// The context of the current schema.
#[derive(Clone, Default)]
struct Context {
    root: bool,
    /// Why defaults are not allowed here.
    no_defaults: Option<String>,
    /// Whether this is inside `apiVersion`, `kind` or `metadata` of an object.
    meta: bool,
}

struct Walk {
    errors: Vec<FieldError>,
    depth: usize,
}

impl Walk {
    fn schema(&mut self, schema: &Value, path: &str, context: &Context) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        let keywords = Keywords::of(schema);
        self.supported(&keywords, path, context);
        if keywords.unique_items {
            let text =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.forbidden(path, "uniqueItems", text);
        }
        self.children(&keywords, path, context);
        self.map_type(&keywords, path);
        self.list_type(&keywords, path);
        self.list_map(&keywords, path);
        self.keys(&keywords, path);
        self.rules(&keywords, path);
        self.depth -= 1;
    }

    fn supported(&mut self, keywords: &Keywords<'_>, path: &str, context: &Context) {
        self.one_of(path, "type", keywords.type_, &TYPES);
        if let Some(reason) = context.no_defaults.as_deref().filter(|_| keywords.default.is_some())
        {
            self.forbidden(path, "default", &format!("must not be set {reason}"));
        }
        let unsupported = keywords.unsupported;
        for (name, present) in [
            ("id", !keywords.id.is_empty()),
            ("additionalItems", unsupported.additional_items),
            ("patternProperties", unsupported.pattern_properties),
            ("definitions", unsupported.definitions),
            ("dependencies", unsupported.dependencies),
            ("$ref", unsupported.reference),
        ] {
            if present {
                self.forbidden(path, name, &format!("{name} is not supported"));
            }
        }
        if keywords.type_ == "null" {
            let text = "type cannot be set to null, use nullable as an alternative";
            self.forbidden(path, "type", text);
        }
        if keywords.items_list {
            self.forbidden(path, "items", "items must be a schema object and not an array");
        }
        if context.meta && keywords.embedded_resource {
            let text = "must not be used inside of resource meta";
            self.forbidden(path, "x-kubernetes-embedded-resource", text);
        }
    }

    fn children(&mut self, keywords: &Keywords<'_>, path: &str, context: &Context) {
        let inner = Context { root: false, ..context.clone() };
        self.additional(keywords, path, &inner);
        for (name, field) in keywords.properties() {
            let mut below = inner.clone();
            let meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            if meta && (context.root || keywords.embedded_resource) {
                below.meta = true;
                if context.root {
                    below.no_defaults = Some(format!("in top-level {name}"));
                }
            }
            self.schema(field, &format!("{path}.properties[{name}]"), &below);
        }
        if let Some(not) = keywords.not {
            self.schema(not, &format!("{path}.not"), &inner);
        }
        let lists =
            [("allOf", keywords.all_of), ("oneOf", keywords.one_of), ("anyOf", keywords.any_of)];
        for (name, schemas) in lists {
            for (at, schema) in schemas.iter().enumerate() {
                self.schema(schema, &format!("{path}.{name}[{at}]"), &inner);
            }
        }
        if let Some(items) = keywords.items {
            self.schema(items, &format!("{path}.items"), &inner);
        }
        if let Some(false) = keywords.preserve_unknown {
            let name = "x-kubernetes-preserve-unknown-fields";
            self.invalid(path, name, &false.into(), "must be true or undefined");
        }
    }

    fn additional(&mut self, keywords: &Keywords<'_>, path: &str, inner: &Context) {
        let Some(additional) = keywords.additional_properties else { return };
        if *additional != Value::Bool(true) && keywords.properties().next().is_some() {
            let text = "additionalProperties and properties are mutual exclusive";
            self.forbidden(path, "additionalProperties", text);
        }
        if let Some(values) = keywords.additional_schema() {
            let mut below = inner.clone();
            if inner.meta {
                let reason = "inside additionalProperties applying to object metadata";
                below.no_defaults = Some(reason.to_owned());
            }
            self.schema(values, &format!("{path}.additionalProperties"), &below);
        }
    }

    fn map_type(&mut self, keywords: &Keywords<'_>, path: &str) {
        let Some(map_type) = keywords.map_type else { return };
        self.must_be(keywords, path, "object", "x-kubernetes-map-type");
        if !matches!(map_type, "atomic" | "granular") {
            let field = format!("{path}.x-kubernetes-map-type");
            let known = ["atomic", "granular"];
            self.errors.push(FieldError::not_supported(field, &map_type.into(), &known));
        }
    }

    fn list_type(&mut self, keywords: &Keywords<'_>, path: &str) {
        let Some(list_type) = keywords.list_type else { return };
        self.must_be(keywords, path, "array", "x-kubernetes-list-type");
        if keywords.type_ == "array" && list_type == "set" {
            self.set_items(keywords, path);
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            let field = format!("{path}.x-kubernetes-list-type");
            let known = ["atomic", "set", "map"];
            self.errors.push(FieldError::not_supported(field, &list_type.into(), &known));
        }
    }

    fn must_be(&mut self, keywords: &Keywords<'_>, path: &str, wanted: &str, because: &str) {
        let text = format!("must be {wanted} if {because} is specified");
        match keywords.type_ {
            is if is == wanted => {}
            "" => self.required(path, "type", &text),
            other => self.invalid(path, "type", &other.into(), &text),
        }
    }

    /// The items of a set are compared as a whole, so they must be atomic.
    fn set_items(&mut self, keywords: &Keywords<'_>, path: &str) {
        let Some(items) = keywords.items.map(Keywords::of) else { return };
        let shown = items.list_type.map_or(Value::Null, Value::from);
        let name = match items.type_ {
            "array" if items.list_type.is_some_and(|is| is != "atomic") => "x-kubernetes-list-type",
            "object" if items.map_type != Some("atomic") => "x-kubernetes-map-type",
            _ => return,
        };
        let text = "must be atomic as item of a list with x-kubernetes-list-type=set";
        self.invalid(path, &format!("items.{name}"), &shown, text);
    }

    fn list_map(&mut self, keywords: &Keywords<'_>, path: &str) {
        let has_keys = !keywords.list_map_keys.is_empty();
        if has_keys && keywords.list_type != Some("map") {
            let name = "x-kubernetes-list-type";
            let text = "must be map if x-kubernetes-list-map-keys is non-empty";
            match keywords.list_type {
                None => self.required(path, name, text),
                Some(other) => self.invalid(path, name, &other.into(), text),
            }
        }
        if keywords.list_type != Some("map") {
            return;
        }
        if !has_keys {
            let text = "must not be empty if x-kubernetes-list-type is map";
            self.required(path, "x-kubernetes-list-map-keys", text);
        }
        let Some(items) = keywords.items.map(Keywords::of) else {
            if !keywords.items_list {
                let text = "must have a schema if x-kubernetes-list-type is map";
                self.required(path, "items", text);
            }
            return;
        };
        if items.type_ == "object" {
            self.list_map_keys(keywords, &items, path);
        } else {
            let text = "must be object if parent array's x-kubernetes-list-type is map";
            self.invalid(path, "items.type", &items.type_.into(), text);
        }
    }

    fn list_map_keys(&mut self, keywords: &Keywords<'_>, items: &Keywords<'_>, path: &str) {
        let shown = Value::from(keywords.list_map_keys.to_vec());
        for (at, key) in keywords.map_keys().enumerate() {
            let list = "x-kubernetes-list-map-keys";
            match items.property(key).map(|field| Keywords::of(field).type_) {
                None => {
                    let text = "entries must all be names of item properties";
                    self.invalid(path, list, &shown, text);
                }
                Some("array" | "object") => {
                    let field = format!("items.properties[{key}].type");
                    let text =
                        "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    self.invalid(path, &field, &items.type_.into(), text);
                }
                Some(_) => {}
            }
            if keywords.map_keys().take(at).any(|before| before == key) {
                self.invalid(path, list, &shown, "must not contain duplicate entries");
            }
        }
    }

    /// Entries of sets and maps must not be null, and the keys of maps must have a value.
    fn keys(&mut self, keywords: &Keywords<'_>, path: &str) {
        let Some(list_type @ ("set" | "map")) = keywords.list_type else { return };
        let Some(items) = keywords.items.map(Keywords::of) else { return };
        if items.nullable {
            let text = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            self.forbidden(path, "items.nullable", &text);
        }
        if list_type == "set" {
            return;
        }
        let because = "this property is in x-kubernetes-list-map-keys, so it";
        for key in keywords.map_keys() {
            let Some(field) = items.property(key).map(Keywords::of) else { continue };
            let path = format!("{path}.items.properties[{key}]");
            if field.default.is_none() && !items.required().any(|name| name == key) {
                let text = format!("{because} must have a default or be a required property");
                self.required(&path, "default", &text);
            }
            if field.nullable {
                self.forbidden(&path, "nullable", &format!("{because} cannot be nullable"));
            }
        }
    }

    /// Rules are not evaluated, but each needs an expression and a valid message.
    fn rules(&mut self, keywords: &Keywords<'_>, path: &str) {
        for (at, rule) in keywords.rules.iter().enumerate() {
            let path = format!("{path}.x-kubernetes-validations[{at}]");
            let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
            let (expression, message) = (text("rule").trim(), text("message").trim());
            let given = text("message").into();
            if expression.is_empty() {
                self.required(&path, "rule", "rule is not specified");
            } else if !text("message").is_empty() && message.is_empty() {
                self.invalid(&path, "message", &given, "must be non-empty if specified");
            } else if message.contains('\n') {
                self.invalid(&path, "message", &given, "must not contain line breaks");
            } else if expression.contains('\n') && message.is_empty() {
                let text = "message must be specified if rule contains line breaks";
                self.required(&path, "message", text);
            }
            self.one_of(&path, "reason", text("reason"), &REASONS);
        }
    }

    fn required(&mut self, path: &str, name: &str, text: &str) {
        self.errors.push(FieldError::required(format!("{path}.{name}"), text));
    }

    fn invalid(&mut self, path: &str, name: &str, value: &Value, text: &str) {
        self.errors.push(FieldError::invalid(format!("{path}.{name}"), value, text));
    }

    /// A keyword that is set must have one of these values.
    fn one_of(&mut self, path: &str, name: &str, value: &str, known: &[&str]) {
        if !value.is_empty() && !known.contains(&value) {
            let field = format!("{path}.{name}");
            self.errors.push(FieldError::not_supported(field, &value.into(), known));
        }
    }

    fn forbidden(&mut self, path: &str, name: &str, text: &str) {
        self.errors.push(FieldError::forbidden(format!("{path}.{name}"), text));
    }
}
