//! How Go names and prints JSON values. Some of kube-apiserver's messages contain values in this
//! format, and clients print the messages.

use std::fmt;

use serde_json::{Number, Value};

/// Prints a value like Go's `%v` prints decoded JSON: `map[name:z ports:[80 81]]`.
#[derive(Clone, Copy, Debug)]
pub struct GoValue<'a>(pub &'a Value);

impl fmt::Display for GoValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Number(value) => f.write_str(&number(value)),
            Value::String(value) => f.write_str(value),
            Value::Array(items) => write!(f, "{}", GoList(items)),
            Value::Object(map) => {
                f.write_str("map[")?;
                for (at, (key, value)) in map.iter().enumerate() {
                    let blank = if at > 0 { " " } else { "" };
                    write!(f, "{blank}{key}:{}", GoValue(value))?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Prints a list as Go's `%v` does: `[a b]`.
pub(super) struct GoList<'a>(pub(super) &'a [Value]);

impl fmt::Display for GoList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, item) in self.0.iter().enumerate() {
            let blank = if at > 0 { " " } else { "" };
            write!(f, "{blank}{}", GoValue(item))?;
        }
        f.write_str("]")
    }
}

/// Formats a value that should be a string like Go's `%s`.
pub(super) fn as_string(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "%!s(<nil>)".into(),
        Value::Array(_) | Value::Object(_) => GoValue(value).to_string(),
        scalar => format!("%!s({}={})", go_type(scalar), GoValue(scalar)),
    }
}

/// The Go type of a decoded JSON value, as in messages.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => GO_LIST,
        Value::Object(_) => GO_MAP,
    }
}

pub(super) const GO_LIST: &str = "[]interface {}";
pub(super) const GO_MAP: &str = "map[string]interface {}";

/// The JSON type as Go's decoder names it.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn number(number: &Number) -> String {
    let float = number.as_f64().filter(|_| number.is_f64());
    float.map_or_else(|| number.to_string(), go_float)
}

/// Prints a float in the shortest form, with an exponent from 1e21 up and below 1e-4.
pub(crate) fn go_float(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (1e-4..1e21).contains(&size) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => {
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{digits}e+{exponent:0>2}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_printed_like_go() {
        for (value, text) in [
            (json!({"port": 99, "name": "z"}), "map[name:z port:99]"),
            (json!([{"a": null}, [true, 1.5]]), "[map[a:<nil>] [true 1.5]]"),
            (json!(1e21), "1e+21"),
            (json!(1.5e-7), "1.5e-07"),
            (json!(2.0), "2"),
            (json!({}), "map[]"),
        ] {
            assert_eq!(GoValue(&value).to_string(), text);
        }
        assert_eq!(as_string(&json!(1)), "%!s(int64=1)");
        assert_eq!(as_string(&json!("x")), "x");
    }
}
