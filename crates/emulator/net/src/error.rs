//! Errors: what failed, in which namespace, and the kernel's error.

use std::io;

/// An operation in a network namespace failed.
#[derive(Debug, thiserror::Error)]
#[error("network namespace `{namespace}`: {what}: {cause}")]
pub struct NetError {
    /// The operation.
    pub what: String,
    /// Name of the namespace.
    pub namespace: String,
    /// The kernel's error.
    pub cause: io::Error,
}

impl NetError {
    pub(crate) fn new(namespace: &str, what: impl Into<String>, cause: io::Error) -> Self {
        Self { what: what.into(), namespace: namespace.to_owned(), cause }
    }
}
