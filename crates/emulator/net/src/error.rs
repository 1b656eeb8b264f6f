//! What failed, where, and what the kernel said.

use std::io;

/// Something that could not be done in a network namespace.
#[derive(Debug, thiserror::Error)]
#[error("network namespace `{namespace}`: {what}: {cause}")]
pub struct NetError {
    /// What was tried.
    pub what: String,
    /// The name of the namespace.
    pub namespace: String,
    /// What the kernel said.
    #[source]
    pub cause: io::Error,
}

impl NetError {
    pub(crate) fn new(namespace: &str, what: impl Into<String>, cause: io::Error) -> Self {
        Self { what: what.into(), namespace: namespace.to_owned(), cause }
    }
}
