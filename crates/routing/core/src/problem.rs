//! Problems travel with results.
//!
//! A strange object harms only itself: it yields a [`Problem`] that names the object, the field
//! and the cure, next to whatever result its sound parts allow.

use std::fmt;

use crate::key::Name;
use crate::object::ObjectRef;

/// What a problem is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// An object.
    Object(ObjectRef),
    /// A setting of the program itself, such as a flag.
    Setting(Name),
    /// An object whose kind or name could not be read; says where it came from.
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

/// Something that is wrong with one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// What it is about.
    pub subject: Subject,
    /// Which field, as an API path (`spec.ports[0].port`).
    pub field: Name,
    /// What is wrong with it.
    pub cause: String,
    /// What to do about it, and what nearhop does meanwhile.
    pub cure: String,
}

impl Problem {
    /// Makes a problem.
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

/// Shortens a value quoted in a message, so that a hostile one cannot flood a log.
pub fn quote(value: &str) -> String {
    const MOST: usize = 64;
    if value.chars().count() <= MOST {
        format!("{value:?}")
    } else {
        let head: String = value.chars().take(MOST).collect();
        format!("{head:?}... ({} characters)", value.chars().count())
    }
}
