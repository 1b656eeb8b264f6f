//! Replays recorded exchanges against a server and lists every difference.
//!
//! The recordings in `data/transcripts` were taken from kube-apiserver 1.36.2. Each is replayed on a new server:
//! first the objects that existed beforehand are created (`data/prepare.json`), then the requests are sent exactly as
//! recorded, except that values which differ from run to run (uids, versions, tokens) are replaced by those of this
//! server. The replay only lists differences; [`accepted`] decides which are acceptable.

pub mod accepted;
pub mod compare;
pub mod engine;
pub mod names;
pub mod prepare;
pub mod transcript;

use std::fmt;

/// One difference between an answer and the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the transcript.
    pub file: String,
    /// Number of the exchange in it; 0 while preparing.
    pub seq: u64,
    /// `METHOD path` as recorded.
    pub request: String,
    /// Path of the difference: `status`, `headers.warning`, `body.spec.type`, `frames[1].object.metadata.name`.
    pub path: String,
    /// The expected and the actual value.
    pub text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, seq, request, path, text } = self;
        write!(f, "{file}#{seq} {request}\n      {path}: {text}")
    }
}
