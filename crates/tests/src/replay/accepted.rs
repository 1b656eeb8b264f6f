//! The list of accepted differences, each with its reason.
//!
//! A difference that no entry covers fails the test, and so does an entry that covers nothing, so the list can neither
//! hide a fault nor keep stale entries.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Difference;
use super::transcript::data;

/// One accepted difference. `*` in a text matches anything.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the transcript.
    pub file: String,
    /// Number of the exchange; `None` for all.
    pub seq: Option<u64>,
    /// `METHOD path`; `None` for any.
    pub request: Option<String>,
    /// Path in the answer.
    pub path: String,
    /// Why the difference is accepted.
    pub reason: String,
}

/// The collections of recordings. Each has its own entries in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recordings {
    /// `data/transcripts`.
    Transcripts,
    /// `data/defaults`; their entries' files start with `defaults/`.
    Defaults,
}

/// The list for one collection.
pub struct Accepted {
    entries: Vec<Entry>,
}

impl Accepted {
    /// Reads the entries of `data/accepted.json` for one of the two collections.
    pub fn read(of: Recordings) -> Result<Self> {
        let text = fs::read_to_string(data().join("accepted.json"))?;
        let mut entries: Vec<Entry> = serde_json::from_str(&text).context("accepted.json")?;
        entries.retain(|e| e.file.starts_with("defaults/") == (of == Recordings::Defaults));
        Ok(Self { entries })
    }

    /// The number of the first entry that covers a difference.
    pub fn covers(&self, difference: &Difference) -> Option<usize> {
        self.entries.iter().position(|entry| {
            matches(&entry.file, &difference.file)
                && entry.seq.is_none_or(|seq| seq == difference.seq)
                && entry.request.as_ref().is_none_or(|r| matches(r, &difference.request))
                && matches(&entry.path, &difference.path)
        })
    }

    /// Splits differences into those that are not accepted and the numbers of the entries that were needed.
    pub fn judge(&self, differences: Vec<Difference>) -> (Vec<Difference>, BTreeSet<usize>) {
        let mut used = BTreeSet::new();
        let unlisted = differences
            .into_iter()
            .filter(|difference| match self.covers(difference) {
                Some(entry) => {
                    used.insert(entry);
                    false
                }
                None => true,
            })
            .collect();
        (unlisted, used)
    }

    /// Entries that covered nothing.
    pub fn stale(&self, used: &BTreeSet<usize>) -> Vec<String> {
        let unused = self.entries.iter().enumerate().filter(|(at, _)| !used.contains(at));
        unused.map(|(_, e)| format!("{} {:?} {:?} {}", e.file, e.seq, e.request, e.path)).collect()
    }
}

/// Whether a text fits a pattern in which `*` matches anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            let Some(at) = rest.find(before) else { return false };
            rest = rest.get(at + before.len()..).unwrap_or_default();
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c*e", "abcde", true),
            ("a*c", "abd", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*.x[*]", "body.x[3]", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
