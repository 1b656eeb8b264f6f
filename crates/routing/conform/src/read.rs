//! Fields of a case: a value with its path, so that every error names its place.
//!
//! An absent optional key, or null, means false, empty or unset (`conformance/cases/README.md`).

use nearhop_core::{Labels, Name};
use serde_json::Value;

/// Why a case could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}{}{message}", if path.is_empty() { "" } else { ": " })]
pub struct CaseError {
    /// Where in the case.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

pub(crate) fn parse_file(bytes: &[u8]) -> Result<Value, CaseError> {
    serde_json::from_slice(bytes)
        .map_err(|error| CaseError { path: String::new(), message: format!("not JSON: {error}") })
}

/// Shortens a text that is too long for a message.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most).collect();
    format!("{head}... ({} characters)", text.chars().count())
}

/// A value in a case and its path; null if the case does not have it.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    value: &'a Value,
}

static ABSENT: Value = Value::Null;

impl<'a> Field<'a> {
    /// The top of a document.
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// The same value as the top of its own document: paths in a case start at the case.
    pub(crate) fn rebased(&self) -> Self {
        Self::root(self.value)
    }

    /// Another value in the same place, such as one that was patched.
    pub(crate) fn with<'b>(&self, value: &'b Value) -> Field<'b> {
        Field { path: self.path.clone(), value }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    /// An error about this field.
    pub(crate) fn error(&self, message: impl Into<String>) -> CaseError {
        CaseError { path: self.path.clone(), message: message.into() }
    }

    fn wrong(&self, expected: &str) -> CaseError {
        let found = match self.value {
            Value::Null => "nothing".to_owned(),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            other => shorten(&other.to_string(), 60),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    /// A key of an object; an absent object has no keys.
    pub(crate) fn get(&self, key: &str) -> Result<Self, CaseError> {
        let path =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        match self.value {
            Value::Object(map) => Ok(Self { path, value: map.get(key).unwrap_or(&ABSENT) }),
            Value::Null => Ok(Self { path, value: &ABSENT }),
            _ => Err(self.wrong("an object")),
        }
    }

    /// Reads every item of a list.
    pub(crate) fn each<T, L: FromIterator<T>>(
        &self,
        read: impl Fn(&Self) -> Result<T, CaseError>,
    ) -> Result<L, CaseError> {
        self.list()?.iter().map(read).collect()
    }

    /// Whether an object has a key, null or not.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some()
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    /// The field, if it is present.
    pub(crate) fn required(self) -> Result<Self, CaseError> {
        if self.is_null() { Err(self.wrong("a value")) } else { Ok(self) }
    }

    /// The field, or `None` if it is absent.
    pub(crate) fn optional(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }

    /// A required text.
    pub(crate) fn text(&self) -> Result<&'a str, CaseError> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    /// A text, or a default if it is absent.
    pub(crate) fn text_or<'b>(&self, other: &'b str) -> Result<&'b str, CaseError>
    where
        'a: 'b,
    {
        if self.is_null() { Ok(other) } else { self.text() }
    }

    /// A name; an empty one counts as unset.
    pub(crate) fn name(&self) -> Result<Option<Name>, CaseError> {
        let text = self.text_or("")?;
        Ok(Some(Name::from(text)).filter(|name| !name.is_empty()))
    }

    /// A text; an empty text counts as set.
    pub(crate) fn set_name(&self) -> Result<Option<Name>, CaseError> {
        if self.is_null() { Ok(None) } else { Ok(Some(Name::from(self.text()?))) }
    }

    /// Yes or no; absent means no.
    pub(crate) fn flag(&self) -> Result<bool, CaseError> {
        Ok(self.condition()?.unwrap_or(false))
    }

    /// Yes, no, or unset.
    pub(crate) fn condition(&self) -> Result<Option<bool>, CaseError> {
        match self.value {
            Value::Null => Ok(None),
            Value::Bool(flag) => Ok(Some(*flag)),
            _ => Err(self.wrong("true or false")),
        }
    }

    /// A whole number within bounds.
    pub(crate) fn whole(&self, least: i64, most: i64) -> Result<i64, CaseError> {
        let number = self.value.as_i64().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.wrong(&format!("a whole number from {least} to {most}")))
    }

    /// A count within a bound.
    pub(crate) fn count(&self, most: usize) -> Result<usize, CaseError> {
        let number = self.value.as_u64().and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| *number <= most);
        number.ok_or_else(|| self.wrong(&format!("a whole number from 0 to {most}")))
    }

    /// A count, or a default if it is absent.
    pub(crate) fn count_or(&self, other: usize, most: usize) -> Result<usize, CaseError> {
        if self.is_null() { Ok(other) } else { self.count(most) }
    }

    /// The items of a list; absent means none.
    pub(crate) fn list(&self) -> Result<Vec<Self>, CaseError> {
        let item =
            |(at, value): (usize, &'a Value)| Self { path: format!("{}[{at}]", self.path), value };
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => Ok(items.iter().enumerate().map(item).collect()),
            _ => Err(self.wrong("a list")),
        }
    }

    /// The entries of an object, sorted by key; absent means none.
    pub(crate) fn entries(&self) -> Result<Vec<(&'a str, Self)>, CaseError> {
        let entry = |(key, value): (&'a String, &'a Value)| {
            (key.as_str(), Self { path: format!("{}[{key:?}]", self.path), value })
        };
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Object(map) => Ok(map.iter().map(entry).collect()),
            _ => Err(self.wrong("an object")),
        }
    }

    /// A list of names.
    pub(crate) fn names(&self) -> Result<Vec<Name>, CaseError> {
        self.list()?.iter().map(|item| item.text().map(Name::from)).collect()
    }

    /// Labels.
    pub(crate) fn labels(&self) -> Result<Labels, CaseError> {
        let pair = |(key, value): (&'a str, Self)| Ok((key, value.text()?));
        self.entries()?.into_iter().map(pair).collect()
    }
}
