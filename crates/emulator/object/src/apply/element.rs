//! One step of a field path, in FieldsV1 notation: `f:name`, `k:{"port":80}`, `v:"x"`, `i:3`.
//!
//! A step is stored as its canonical text (keys sorted, no blanks, numbers without a redundant
//! fraction). Two steps are equal if and only if their texts are, and a set of fields can be the
//! FieldsV1 document itself. Steps are parsed only for messages and for sorting.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::schema::{ListType, Node};

/// The step to an item of a non-atomic list.
///
/// # Errors
/// Why the item cannot be identified, with the message of Kubernetes.
pub(super) fn of_item(list: Node<'_>, item: &Value) -> Result<String, String> {
    match list.list_type() {
        ListType::Map(keys) => of_keyed(list, keys, item),
        ListType::Set => of_set_value(item),
        ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
    }
}

fn of_keyed(list: Node<'_>, keys: &[Box<str>], item: &Value) -> Result<String, String> {
    let object = match item {
        Value::Object(object) => object,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let fields = list.items().and_then(Node::as_struct);
    let mut out = String::with_capacity(40);
    out.push_str("k:{");
    let mut write = |key: &str| {
        let declared = || fields.and_then(|f| f.field(key)).and_then(|f| f.default.as_ref());
        if let Some(value) = object.get(key).or_else(declared) {
            if out.len() > 3 {
                out.push(',');
            }
            push_string(&mut out, key);
            out.push(':');
            push_json(&mut out, value);
        }
    };
    if keys.is_sorted() {
        keys.iter().for_each(|key| write(key));
    } else {
        let mut sorted: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        sorted.sort_unstable();
        sorted.into_iter().for_each(&mut write);
    }
    if out.len() == 3 {
        let names: Vec<String> = keys.iter().map(|key| quoted(key)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    out.push('}');
    Ok(out)
}

fn of_set_value(item: &Value) -> Result<String, String> {
    let refused = match item {
        Value::Object(_) => "associative list without keys has an element that's a map type",
        Value::Array(_) => "not supported: associative list with lists as elements",
        Value::Null => "associative list without keys has an element that's an explicit null",
        _ => {
            let mut out = String::from("v:");
            push_json(&mut out, item);
            return Ok(out);
        }
    };
    Err(refused.to_owned())
}

pub(super) fn of_field(name: &str) -> String {
    format!("f:{name}")
}

/// The canonical form of a step in a FieldsV1 document; `None` for an unknown kind of step, which
/// the caller omits.
///
/// # Errors
/// Why the step is not valid.
pub(super) fn canonical(step: String) -> Result<Option<String>, String> {
    let Some((kind, rest)) = step.split_at_checked(2) else {
        return Err("key must be 2 characters long:".to_owned());
    };
    match kind {
        "f:" => Ok(Some(step)),
        "i:" => match rest.parse::<i64>() {
            Ok(index) => Ok(Some(format!("i:{index}"))),
            Err(_) => Err(format!("parsing {rest:?}: invalid syntax")),
        },
        "v:" | "k:" => {
            let value: Value = serde_json::from_str(rest).map_err(|e| e.to_string())?;
            if kind == "k:" && !value.is_object() {
                return Err(format!("expected an object in {step}"));
            }
            let mut out = String::with_capacity(step.len());
            out.push_str(kind);
            push_json(&mut out, &value);
            Ok(Some(out))
        }
        _ if kind.ends_with(':') => Ok(None),
        _ => Err(format!("missing colon: {step}")),
    }
}

/// Appends the step in the notation of messages: `.name`, `[port=80,protocol="TCP"]`, `[="x"]`,
/// `[3]`.
pub(super) fn push_display(out: &mut String, step: &str) {
    let (kind, rest) = step.split_at_checked(2).unwrap_or(("", step));
    let json = || serde_json::from_str::<Value>(rest).unwrap_or_default();
    let text = match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let fields = json().as_object().cloned().unwrap_or_default();
            let shown: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}={}", shown(value))).collect();
            format!("[{}]", shown.join(","))
        }
        "v:" => format!("[={}]", shown(&json())),
        _ => format!("[{rest}]"),
    };
    out.push_str(&text);
}

/// Kubernetes' order of steps: fields, keys, values, indices; numbers by value.
pub(super) fn order(a: &str, b: &str) -> Ordering {
    let (a_kind, a_rest) = a.split_at_checked(2).unwrap_or(("", a));
    let (b_kind, b_rest) = b.split_at_checked(2).unwrap_or(("", b));
    if a_kind != b_kind {
        return rank(a_kind).cmp(&rank(b_kind));
    }
    if a_kind == "f:" {
        return a_rest.cmp(b_rest);
    }
    let parsed = |text| serde_json::from_str::<Value>(text).unwrap_or_default();
    order_values(&parsed(a_rest), &parsed(b_rest)).then_with(|| a.cmp(b))
}

fn rank(kind: &str) -> u8 {
    match kind {
        "f:" => 0,
        "k:" => 1,
        "v:" => 2,
        _ => 3,
    }
}

fn order_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0))
        }
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Object(a), Value::Object(b)) => order_fields(a, b),
        _ => type_rank(a).cmp(&type_rank(b)),
    }
}

fn order_fields(a: &Map<String, Value>, b: &Map<String, Value>) -> Ordering {
    for ((a_key, a_value), (b_key, b_value)) in a.iter().zip(b) {
        let order = a_key.cmp(b_key).then_with(|| order_values(a_value, b_value));
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

fn type_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A quoted string, as Go's `%q` formats it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn push_json(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => push_string(out, text),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            // 80 and 80.0 are the same key.
            (None, Some(float)) if float.fract() == 0.0 && float.abs() < 1e15 => {
                out.push_str(&format!("{float:.0}"));
            }
            _ => out.push_str(&number.to_string()),
        },
        Value::Object(object) => {
            out.push('{');
            for (at, (key, value)) in object.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push_string(out, key);
                out.push(':');
                push_json(out, value);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Appends a JSON string with Go's HTML escapes.
fn push_string(out: &mut String, text: &str) {
    let plain = |b: u8| !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&' | 0..=0x1f | 0x7f..);
    if text.bytes().all(plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&escape_html(&Value::from(text).to_string()));
    }
}

/// JSON text in which `<`, `>`, `&`, U+2028 and U+2029 are escaped as Go does.
pub(super) fn escape_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
}
