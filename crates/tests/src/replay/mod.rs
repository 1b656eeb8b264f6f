//! Replays recorded exchanges against a server and lists every difference.
//!
//! The recordings in `data/transcripts` were taken from kube-apiserver 1.36.2. Each is replayed on a server of its own:
//! what existed beforehand is made first (`data/prepare.json`), then the requests are sent exactly as recorded, except
//! that values which differ from run to run (uids, versions, tokens) are replaced by what this server gave out.
//! It deliberately does not judge: whether a difference is acceptable is for [`accepted`] to say.

pub mod accepted;
pub mod compare;
pub mod engine;
pub mod names;
pub mod prepare;
pub mod transcript;

use std::fmt;

/// One way in which an answer was not what was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the transcript.
    pub file: String,
    /// Number of the exchange in it; 0 while preparing.
    pub seq: u64,
    /// `METHOD path` as recorded.
    pub request: String,
    /// Where: `status`, `headers.warning`, `body.spec.type`, `frames[1].object.metadata.name`.
    pub path: String,
    /// What was expected and what came.
    pub text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, seq, request, path, text } = self;
        write!(f, "{file}#{seq} {request}\n      {path}: {text}")
    }
}
