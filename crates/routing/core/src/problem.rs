//! Problems are part of each result.
//!
//! An invalid object affects only itself: it produces a [`Problem`] that names the object, the
//! field and the solution, together with the result for its valid parts.

use std::fmt;

use crate::key::Name;
use crate::object::ObjectRef;

/// The subject of a problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// An object.
    Object(ObjectRef),
    /// A setting of the program itself, such as a flag.
    Setting(Name),
    /// An object with an unreadable kind or name; contains its source.
    Unknown(Name),
}

impl From<ObjectRef> for Subject {
    fn from(object: ObjectRef) -> Self {
        Self::Object(object)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(object) => object.fmt(f),
            Self::Setting(name) => write!(f, "setting {name}"),
            Self::Unknown(origin) => write!(f, "object {origin}"),
        }
    }
}

/// A problem with one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The subject.
    pub subject: Subject,
    /// The field, as an API path (`spec.ports[0].port`).
    pub field: Name,
    /// What is wrong with the field.
    pub cause: String,
    /// What the user can do, and what nearhop does until then.
    pub cure: String,
}

impl Problem {
    /// Creates a problem.
    pub fn new(
        subject: impl Into<Subject>,
        field: impl Into<Name>,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            field: field.into(),
            cause: cause.into(),
            cure: cure.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.subject, self.field, self.cause, self.cure)
    }
}

/// Quotes and shortens a value for a message, so that a long value cannot flood a log.
pub fn quote(value: &str) -> String {
    const MOST: usize = 64;
    if value.chars().count() <= MOST {
        format!("{value:?}")
    } else {
        let head: String = value.chars().take(MOST).collect();
        format!("{head:?}... ({} characters)", value.chars().count())
    }
}
