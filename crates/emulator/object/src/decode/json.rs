//! Parses JSON, and reports duplicate keys.
//!
//! `serde_json` alone does not report them, and a second pass would take as long as the first.
//! `serde_json` limits the depth to 128; all later code relies on that.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::path::{MOST_NAMED, Path, Step};
use super::{DecodeError, Parsed, syntax};

/// Parses exactly one JSON value.
///
/// # Errors
/// The text is not JSON; the message is that of Go.
pub fn parse_json(bytes: &[u8]) -> Result<Parsed, DecodeError> {
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let parsed = parse(&mut source).and_then(|parsed| source.end().map(|()| parsed));
    // This is slow, but runs only for rejected texts.
    parsed.map_err(|error| {
        DecodeError(syntax::go_syntax_error(bytes).unwrap_or_else(|| error.to_string()))
    })
}

/// Parses a value of any format; of duplicate keys the last one counts.
pub(super) fn parse<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
    let duplicates = RefCell::new(Vec::new());
    let visit = |parent: &Path<'_>, key: &str, repeated: bool| {
        let mut duplicates = duplicates.borrow_mut();
        if repeated && duplicates.len() < MOST_NAMED {
            duplicates.push(parent.with_key(key));
        }
        true
    };
    let value = ValueSeed { path: &Path::ROOT, visit: &visit }.deserialize(deserializer)?;
    Ok(Parsed { value, duplicates: duplicates.into_inner() })
}

/// Parses any value; also used for YAML, whose keys need not be strings.
pub(super) struct ValueSeed<'a, V> {
    pub(super) path: &'a Path<'a>,
    /// Called with the path of an object, a key in it, and whether the key is a duplicate. Returns
    /// whether the value of the key is needed.
    pub(super) visit: &'a V,
}

impl<'de, V: Fn(&Path<'_>, &str, bool) -> bool> DeserializeSeed<'de> for ValueSeed<'_, V> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, V: Fn(&Path<'_>, &str, bool) -> bool> Visitor<'de> for ValueSeed<'_, V> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = self.path.down(Step::Index(list.len()));
            match items.next_element_seed(ValueSeed { path: &path, visit: self.visit })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key()? {
            let key = key_text(key).map_err(A::Error::custom)?;
            if !(self.visit)(self.path, &key, map.contains_key(&key)) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let path = self.path.down(Step::Key(&key));
            let value = entries.next_value_seed(ValueSeed { path: &path, visit: self.visit })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The text of a key. JSON has only strings; YAML also has booleans, numbers and null.
fn key_text(key: Value) -> Result<String, &'static str> {
    match key {
        Value::String(text) => Ok(text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => Ok(float.to_string()),
            None => Ok(number.to_string()),
        },
        Value::Bool(_) | Value::Null => Ok(key.to_string()),
        Value::Array(_) | Value::Object(_) => Err("a key must be a scalar"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_parsed_and_duplicate_keys_reported() {
        let text = br#"{"a":1,"spec":{"type":"A","ports":[{"port":1},{"port":1,"port":2}],"type":"B"},"big":18446744073709551615,"f":1.5}"#;
        let parsed = parse_json(text).expect("valid");
        assert_eq!(parsed.duplicates, ["spec.ports[1].port", "spec.type"]);
        assert_eq!(
            parsed.value,
            json!({"a":1,"spec":{"type":"B","ports":[{"port":1},{"port":2}]},"big":18446744073709551615_u64,"f":1.5})
        );
    }

    #[test]
    fn errors_match_go() {
        for (text, message) in [
            ("{not json", "invalid character 'n' looking for beginning of object key string"),
            ("", "unexpected end of JSON input"),
            (r#"{"a":1} x"#, "invalid character 'x' after top-level value"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("nul", "unexpected end of JSON input"),
            ("nulL", "invalid character 'L' in literal null (expecting 'l')"),
            ("01", "invalid character '1' after top-level value"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            (r#""\x""#, "invalid character 'x' in string escape code"),
            (r#""\u12g""#, "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
        ] {
            assert_eq!(parse_json(text.as_bytes()), Err(DecodeError(message.into())), "{text}");
        }
    }

    #[test]
    fn the_number_of_duplicate_key_reports_is_limited() {
        let text = format!("{{{:?}:{{{}\"a\":1}}}}", "x".repeat(5000), "\"a\":1,".repeat(5000));
        let parsed = parse_json(text.as_bytes()).expect("valid");
        assert_eq!(parsed.duplicates.len(), MOST_NAMED);
        assert!(parsed.duplicates.iter().all(|path| path.len() <= 1000));
    }

    #[test]
    fn the_depth_is_limited() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_json(deep.as_bytes()).is_err());
    }
}
