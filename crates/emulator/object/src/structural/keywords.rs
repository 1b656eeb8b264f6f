//! The keywords of one schema, read in one pass. Values of the wrong JSON type count as absent: the
//! API decodes a CRD first, so only input from elsewhere can contain them.

use serde_json::{Map, Value};

/// The keywords of one schema.
#[derive(Clone, Copy, Default)]
pub(super) struct Keywords<'a> {
    pub(super) type_: &'a str,
    pub(super) format: &'a str,
    pub(super) pattern: &'a str,
    pub(super) title: &'a str,
    pub(super) description: &'a str,
    pub(super) id: &'a str,
    pub(super) default: Option<&'a Value>,
    pub(super) nullable: bool,
    pub(super) unique_items: bool,
    pub(super) exclusive_maximum: bool,
    pub(super) exclusive_minimum: bool,
    pub(super) maximum: Option<f64>,
    pub(super) minimum: Option<f64>,
    pub(super) multiple_of: Option<f64>,
    pub(super) max_length: Option<i64>,
    pub(super) min_length: Option<i64>,
    pub(super) max_items: Option<i64>,
    pub(super) min_items: Option<i64>,
    pub(super) max_properties: Option<i64>,
    pub(super) min_properties: Option<i64>,
    pub(super) enum_: &'a [Value],
    pub(super) required: &'a [Value],
    pub(super) all_of: &'a [Value],
    pub(super) any_of: &'a [Value],
    pub(super) one_of: &'a [Value],
    pub(super) not: Option<&'a Value>,
    pub(super) items: Option<&'a Value>,
    /// Whether `items` is a list of schemas (never structural).
    pub(super) items_list: bool,
    pub(super) properties: Option<&'a Map<String, Value>>,
    /// A schema or a boolean.
    pub(super) additional_properties: Option<&'a Value>,
    pub(super) preserve_unknown: Option<bool>,
    pub(super) embedded_resource: bool,
    pub(super) int_or_string: bool,
    pub(super) list_type: Option<&'a str>,
    pub(super) list_map_keys: &'a [Value],
    pub(super) map_type: Option<&'a str>,
    pub(super) rules: &'a [Value],
    /// Keywords that no CRD may have, in the order of Kubernetes' errors.
    pub(super) unsupported: Unsupported,
}

/// Keywords of JSON Schema that no CRD may have.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Unsupported {
    pub(super) additional_items: bool,
    pub(super) pattern_properties: bool,
    pub(super) definitions: bool,
    pub(super) dependencies: bool,
    pub(super) reference: bool,
    pub(super) schema: bool,
}

impl<'a> Keywords<'a> {
    pub(super) fn of(schema: &'a Value) -> Self {
        let mut found = Self::default();
        for (key, value) in schema.as_object().into_iter().flatten() {
            found.take(key, value);
        }
        found
    }

    fn take(&mut self, key: &str, value: &'a Value) {
        match key {
            "type" => self.type_ = text(value),
            "properties" => self.properties = value.as_object(),
            "items" => {
                self.items = Some(value).filter(|value| value.is_object());
                self.items_list = value.as_array().is_some_and(|all| !all.is_empty());
            }
            "required" => self.required = list(value),
            "enum" => self.enum_ = list(value),
            "default" => self.default = Some(value).filter(|value| !value.is_null()),
            "nullable" => self.nullable = flag(value),
            "additionalProperties" => {
                let usable = value.is_object() || value.is_boolean();
                self.additional_properties = Some(value).filter(|_| usable);
            }
            "not" => self.not = Some(value).filter(|value| value.is_object()),
            "allOf" => self.all_of = list(value),
            "anyOf" => self.any_of = list(value),
            "oneOf" => self.one_of = list(value),
            _ if key.starts_with("x-kubernetes-") => self.take_extension(key, value),
            _ => self.take_limit(key, value),
        }
    }

    fn take_extension(&mut self, key: &str, value: &'a Value) {
        match key {
            "x-kubernetes-preserve-unknown-fields" => self.preserve_unknown = value.as_bool(),
            "x-kubernetes-embedded-resource" => self.embedded_resource = flag(value),
            "x-kubernetes-int-or-string" => self.int_or_string = flag(value),
            "x-kubernetes-list-type" => self.list_type = value.as_str(),
            "x-kubernetes-list-map-keys" => self.list_map_keys = list(value),
            "x-kubernetes-map-type" => self.map_type = value.as_str(),
            "x-kubernetes-validations" => self.rules = list(value),
            _ => {}
        }
    }

    fn take_limit(&mut self, key: &str, value: &'a Value) {
        match key {
            "format" => self.format = text(value),
            "pattern" => self.pattern = text(value),
            "title" => self.title = text(value),
            "description" => self.description = text(value),
            "maximum" => self.maximum = value.as_f64(),
            "minimum" => self.minimum = value.as_f64(),
            "multipleOf" => self.multiple_of = value.as_f64(),
            "exclusiveMaximum" => self.exclusive_maximum = flag(value),
            "exclusiveMinimum" => self.exclusive_minimum = flag(value),
            "maxLength" => self.max_length = value.as_i64(),
            "minLength" => self.min_length = value.as_i64(),
            "maxItems" => self.max_items = value.as_i64(),
            "minItems" => self.min_items = value.as_i64(),
            "uniqueItems" => self.unique_items = flag(value),
            "maxProperties" => self.max_properties = value.as_i64(),
            "minProperties" => self.min_properties = value.as_i64(),
            "id" => self.id = text(value),
            "additionalItems" => self.unsupported.additional_items = !value.is_null(),
            "patternProperties" => self.unsupported.pattern_properties = has_entries(value),
            "definitions" => self.unsupported.definitions = has_entries(value),
            "dependencies" => self.unsupported.dependencies = value.is_object(),
            "$ref" => self.unsupported.reference = value.is_string(),
            "$schema" => self.unsupported.schema = !text(value).is_empty(),
            _ => {}
        }
    }

    pub(super) fn properties(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.properties.into_iter().flatten()
    }

    pub(super) fn property(&self, name: &str) -> Option<&'a Value> {
        self.properties?.get(name)
    }

    /// The schema of a map's values, if it has one.
    pub(super) fn additional_schema(&self) -> Option<&'a Value> {
        self.additional_properties.filter(|value| value.is_object())
    }

    /// The schema of a key: that of the declared field, or else that of the map's values.
    pub(super) fn below(&self, key: &str) -> Option<&'a Value> {
        self.property(key).or_else(|| self.additional_schema())
    }

    /// Whether unknown fields are kept.
    pub(super) fn preserves(&self) -> bool {
        self.preserve_unknown == Some(true)
    }

    pub(super) fn map_keys(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        self.list_map_keys.iter().filter_map(Value::as_str)
    }

    pub(super) fn required(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.required.iter().filter_map(Value::as_str)
    }

    /// Whether a keyword prevents the conversion into a structural schema.
    pub(super) fn is_unconvertible(&self) -> bool {
        self.unsupported != Unsupported::default() || self.items_list || !self.id.is_empty()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn has_entries(value: &Value) -> bool {
    value.as_object().is_some_and(|all| !all.is_empty())
}
