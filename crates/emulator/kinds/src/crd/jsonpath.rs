//! The JSONPath that CustomResourceDefinitions use in columns: `.spec.a`, `.spec['a']`,
//! `.spec.list[0]`, `.status.conditions[?(@.type=="Ready")].status`. The result is the first value.
//! Slices, unions and recursive descent are not supported and give nothing.

use serde_json::Value;

/// The maximum number of steps.
const MAX_STEPS: usize = 64;

/// The value at a path; `null` if there is none or the path is invalid.
pub fn cell(object: &Value, json_path: &str) -> Value {
    let Some(steps) = parse(json_path) else { return Value::Null };
    find(object, &steps).cloned().unwrap_or_default()
}

#[derive(Debug, PartialEq)]
enum Step {
    Key(String),
    Index(i64),
    All,
    Filter { path: Vec<Self>, op: Op, value: Value },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Exists,
}

fn find<'a>(value: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match step {
        Step::Key(key) => find(value.get(key)?, rest),
        Step::Index(at) => {
            let items = value.as_array()?;
            let from_end = || items.len().checked_sub(usize::try_from(at.unsigned_abs()).ok()?);
            let at = usize::try_from(*at).ok().or_else(from_end)?;
            find(items.get(at)?, rest)
        }
        Step::All => children(value).find_map(|item| find(item, rest)),
        Step::Filter { path, op, value: wanted } => {
            let fits = |item: &&Value| compare(find(item, path), *op, wanted);
            value.as_array()?.iter().filter(fits).find_map(|item| find(item, rest))
        }
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn compare(found: Option<&Value>, op: Op, wanted: &Value) -> bool {
    let Some(found) = found else { return false };
    let order = match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b))
        }
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
    };
    match op {
        Op::Exists => true,
        Op::Equal => order.is_some_and(|order| order.is_eq()),
        Op::NotEqual => !order.is_some_and(|order| order.is_eq()),
        Op::Less => order.is_some_and(|order| order.is_lt()),
        Op::LessOrEqual => order.is_some_and(|order| order.is_le()),
        Op::Greater => order.is_some_and(|order| order.is_gt()),
        Op::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.trim();
    rest = rest.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(rest);
    rest = rest.strip_prefix('$').unwrap_or(rest);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() >= MAX_STEPS {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner)?;
            let (inside, after) = inner.split_at_checked(end)?;
            steps.push(bracket(inside.trim())?);
            rest = after.strip_prefix(']')?;
        } else {
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let (key, after) = take_key(after);
            match key.as_str() {
                // `.` alone is the object itself; `.[0]` is as good as `[0]`.
                "" if after.is_empty() || after.starts_with('[') => {}
                "" => return None,
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Key(key)),
            }
            rest = after;
        }
    }
    Some(steps)
}

/// A key up to the next dot or bracket; a backslash takes the next character as it is.
fn take_key(text: &str) -> (String, &str) {
    let mut key = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (key, text.get(at..).unwrap_or_default()),
            '\\' => key.extend(chars.next().map(|(_, c)| c)),
            other => key.push(other),
        }
    }
    (key, "")
}

/// Where the bracket closes that was opened before the text.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(key) = unquote(inside) {
        return Some(Step::Key(key));
    }
    match inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        Some(condition) => filter(condition),
        None => inside.parse().ok().map(Step::Index),
    }
}

fn filter(condition: &str) -> Option<Step> {
    let operators = [
        ("==", Op::Equal),
        ("!=", Op::NotEqual),
        ("<=", Op::LessOrEqual),
        (">=", Op::GreaterOrEqual),
        ("<", Op::Less),
        (">", Op::Greater),
    ];
    let split = operators.iter().find_map(|(text, op)| {
        let (left, right) = condition.split_once(text)?;
        Some((left, *op, right))
    });
    let (left, op, right) = split.unwrap_or((condition, Op::Exists, "null"));
    let path = left.trim().strip_prefix('@')?;
    // Nested filters are not supported.
    let path = if path.contains("?(") { return None } else { parse(path)? };
    let right = right.trim();
    let value = match unquote(right) {
        Some(text) => text.into(),
        None => serde_json::from_str(right).ok()?,
    };
    Some(Step::Filter { path, op, value })
}

fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    Some(inner.replace(&format!("\\{quote}"), &quote.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_printed_like_kubectl() {
        let object = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"a.b/c": "x"}},
            "spec": {"a": {"b": 1}, "list": [{"n": "one"}, {"n": "two"}], "null": null},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1}, {"type": "Other", "status": "False", "n": 2},
            ]},
        });
        for (path, value) in [
            (".spec.a.b", json!(1)),
            (".spec['a']['b']", json!(1)),
            (".spec[\"a\"].b", json!(1)),
            ("{.spec.a.b}", json!(1)),
            (".spec.list[0].n", json!("one")),
            (".spec.list[-1].n", json!("two")),
            (".spec.list[9].n", json!(null)),
            (".spec.list[-9].n", json!(null)),
            (".spec.list[*].n", json!("one")),
            (".spec.missing.b", json!(null)),
            (".spec.null", json!(null)),
            (".metadata.creationTimestamp", json!("2026-01-01T00:00:00Z")),
            (r".metadata.annotations.a\.b/c", json!("x")),
            (".metadata.annotations['a.b/c']", json!("x")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type=='Other')].status", json!("False")),
            (".status.conditions[?(@.type != 'Ready')].status", json!("False")),
            (".status.conditions[?(@.n>1)].type", json!("Other")),
            (".status.conditions[?(@.missing)].type", json!(null)),
            (".status.conditions[?(@.n)].type", json!("Ready")),
            (".status.conditions[?(@.type==\"None\")].status", json!(null)),
            ("..a", json!(null)),
            (".spec[", json!(null)),
            (".spec[?(", json!(null)),
            (".spec[]", json!(null)),
        ] {
            assert_eq!(cell(&object, path), value, "{path}");
        }
        assert_eq!(cell(&object, ""), object);
        assert_eq!(cell(&object, &".a".repeat(1000)), Value::Null);
    }
}
