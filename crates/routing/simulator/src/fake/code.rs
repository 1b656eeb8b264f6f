//! Why a batch was refused, with the kernel's error codes, so that the same test can run on the
//! fake and on the kernel.

use std::fmt;

use thiserror::Error;

/// The kernel's answer. If kernels differ, one code covers both answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A table, set, chain or element does not exist.
    NotFound,
    /// A different object with this name or key exists.
    Exists,
    /// The object is in use.
    Busy,
    /// The object is inconsistent, or does not match its set.
    Invalid,
    /// A register or a number is out of range.
    Range,
    /// The operation is not supported here.
    NotSupported,
    /// The chain has another hook. Kernels answer with one of two errors.
    HookDiffers,
    /// Jumps between chains form a loop or are too deep. Kernels differ here too.
    Loop,
    /// The kernel is out of memory. Only if a test injects it.
    NoMemory,
}

impl Code {
    /// The name of the error number.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "ENOENT",
            Self::Exists => "EEXIST",
            Self::Busy => "EBUSY",
            Self::Invalid => "EINVAL",
            Self::Range => "ERANGE",
            Self::NotSupported => "EOPNOTSUPP",
            Self::HookDiffers => "EOPNOTSUPP or EEXIST",
            Self::Loop => "EMLINK or ELOOP",
            Self::NoMemory => "ENOMEM",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refused batch. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{about}: {code}", self.place())]
pub struct FakeError {
    /// The index of the refused operation; none if the batch was refused as a whole.
    pub op: Option<usize>,
    /// The kernel's answer.
    pub code: Code,
    /// A description of the object.
    pub about: String,
}

impl FakeError {
    fn place(&self) -> String {
        self.op.map(|op| format!("operation {op}: ")).unwrap_or_default()
    }
}

/// A refusal without the index of its operation.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) about: String,
}

impl Refusal {
    pub(super) fn new(code: Code, about: impl Into<String>) -> Self {
        Self { code, about: about.into() }
    }

    pub(super) fn at(self, op: Option<usize>) -> FakeError {
        FakeError { op, code: self.code, about: self.about }
    }
}
