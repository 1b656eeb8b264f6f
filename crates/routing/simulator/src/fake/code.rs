//! Why a batch was refused, in the kernel's terms, so that a test can ask the fake and the kernel
//! the same question.

use std::fmt;

use thiserror::Error;

/// What the kernel answers. Where kernels differ, one code is for both answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A table, set, chain or element is not there.
    NotFound,
    /// It is there, and it is another one.
    Exists,
    /// It is in use.
    Busy,
    /// It contradicts itself, or does not fit the set.
    Invalid,
    /// A register or a number is out of range.
    Range,
    /// It cannot be done at this place.
    NotSupported,
    /// The chain hangs elsewhere. Kernels answer with either of two errors.
    HookDiffers,
    /// Chains that go to each other in a circle, or too deep. Kernels differ here too.
    Loop,
    /// The socket's buffer is too small for the batch. Only by injection.
    NoBuffers,
    /// The kernel is out of memory. Only by injection.
    NoMemory,
    /// Not allowed. Only by injection.
    NotPermitted,
}

impl Code {
    /// The error numbers under which kernels report it.
    pub fn errnos(self) -> &'static [i32] {
        match self {
            Self::NotFound => &[2],
            Self::Exists => &[17],
            Self::Busy => &[16],
            Self::Invalid => &[22],
            Self::Range => &[34],
            Self::NotSupported => &[95],
            Self::HookDiffers => &[95, 17],
            Self::Loop => &[31, 40],
            Self::NoBuffers => &[105],
            Self::NoMemory => &[12],
            Self::NotPermitted => &[1],
        }
    }

    /// Whether a kernel may mean this by an error number.
    pub fn is_errno(self, errno: i32) -> bool {
        self.errnos().contains(&errno)
    }

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
            Self::NoBuffers => "ENOBUFS",
            Self::NoMemory => "ENOMEM",
            Self::NotPermitted => "EPERM",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A batch that was refused. Nothing of it happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{about}: {code}", self.place())]
pub struct FakeError {
    /// Which operation of the batch; none where the batch as a whole was refused.
    pub op: Option<usize>,
    /// The kernel's answer.
    pub code: Code,
    /// What it was about, for people.
    pub about: String,
}

impl FakeError {
    fn place(&self) -> String {
        self.op.map(|op| format!("operation {op}: ")).unwrap_or_default()
    }
}

/// A refusal that does not know yet in which operation it happened.
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
