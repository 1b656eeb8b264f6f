//! Field selectors: `metadata.name=x,status.phase!=Failed`.
//!
//! A missing field counts as the empty string. The caller knows which fields a kind supports.

use std::fmt;

use super::SelectorError;

/// A set of terms that must all hold. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

/// One term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// `metadata.name`
    pub field: Box<str>,
    /// The operator.
    pub operator: FieldOperator,
    /// The value to compare with, without escapes. It may be empty.
    pub value: Box<str>,
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOperator {
    /// `=`, `==`
    Equals,
    /// `!=`
    NotEquals,
}

impl FieldSelector {
    /// Parses the query form. An empty text matches everything.
    ///
    /// # Errors
    /// The message is that of kube-apiserver.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let Some((field, operator, value)) = split_term(part) else {
                let text = format!("invalid selector: '{text}'; can't understand '{part}'");
                return Err(SelectorError(text));
            };
            let value = unescape(value)?;
            // A lone `=` has no effect.
            if !field.is_empty() || !value.is_empty() {
                terms.push(FieldTerm { field: field.into(), operator, value });
            }
        }
        Ok(Self { terms })
    }

    /// The terms, in the order of the text.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The names of the fields, in the order of the terms.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| &*term.field)
    }

    /// Whether it has no term, and so matches all fields.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether the fields that a lookup returns satisfy all terms.
    pub fn matches<'l>(&self, fields: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.terms.iter().all(|term| {
            let equal = fields(&term.field).unwrap_or_default() == &*term.value;
            equal == (term.operator == FieldOperator::Equals)
        })
    }
}

/// Splits at commas that are not escaped; keeps the escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    let at_comma = |c: char| {
        let splits = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        splits
    };
    text.split(at_comma).collect()
}

/// Splits at the first operator: a field's name cannot contain one.
fn split_term(term: &str) -> Option<(&str, FieldOperator, &str)> {
    let equals = term.find('=')?;
    let (before, after) = term.split_at_checked(equals)?;
    if let Some(field) = before.strip_suffix('!') {
        return Some((field, FieldOperator::NotEquals, after.strip_prefix('=')?));
    }
    let value = after.strip_prefix("==").or_else(|| after.strip_prefix('='))?;
    Some((before, FieldOperator::Equals, value))
}

fn unescape(value: &str) -> Result<Box<str>, SelectorError> {
    if !value.contains(['\\', ',', '=']) {
        return Ok(value.into());
    }
    let fail = |text: String| Err(SelectorError(format!("invalid field selector: {text}")));
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => return fail(format!("invalid escape sequence: \\{c}")),
                None => return fail("invalid escape sequence: \\".into()),
            },
            // The server prints the number of the character.
            ',' | '=' => {
                return fail(format!("unescaped character in value: {}", u32::from(c)));
            }
            c => plain.push(c),
        }
    }
    Ok(plain.into())
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let operator = match term.operator {
                FieldOperator::Equals => "=",
                FieldOperator::NotEquals => "!=",
            };
            write!(f, "{comma}{}{operator}", term.field)?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let selector = FieldSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector, "{text}");
        selector.to_string()
    }

    #[test]
    fn valid_selectors_are_parsed() {
        for (text, expected) in [
            ("", ""),
            (",", ""),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            ("a!=b", "a!=b"),
            ("b=1,a=2", "a=2,b=1"),
            ("involvedObject.namespace=", "involvedObject.namespace="),
            ("a=", "a="),
            ("=", ""),
            (r"a=b\,c\=d\\", r"a=b\,c\=d\\"),
            ("a= b", "a= b"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        let selector = FieldSelector::parse(r"a=b\,c").unwrap();
        assert_eq!(&*selector.terms[0].value, "b,c");
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for (text, error) in [
            // Recorded from kube-apiserver.
            ("nonsense", "invalid selector: 'nonsense'; can't understand 'nonsense'"),
            ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }

    #[test]
    fn terms_match_fields() {
        let fields = |name: &str| match name {
            "metadata.name" => Some("x"),
            "status.phase" => Some("Running"),
            _ => None,
        };
        for (text, expected) in [
            ("", true),
            ("metadata.name=x", true),
            ("metadata.name=y", false),
            ("metadata.name!=y,status.phase!=Failed", true),
            ("metadata.name=x,status.phase!=Running", false),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().matches(fields), expected, "{text}");
        }
    }

    #[test]
    fn fields_are_listed() {
        let selector = FieldSelector::parse("b=1,a!=2").unwrap();
        assert_eq!(selector.fields().collect::<Vec<_>>(), ["a", "b"]);
    }
}
