//! Results per file, and totals.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::read::{CaseError, shorten};

/// The longest value shown in full.
const MOST: usize = 160;

/// A failure at one path of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum What {
    /// The result of nearhop differs from the expectation.
    Differs {
        /// The expected value.
        expected: Value,
        /// The result of nearhop.
        actual: Value,
    },
    /// The case could not be run or compared.
    Error {
        /// Why.
        error: String,
    },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs { expected, actual } => {
                let short = |value: &Value| shorten(&value.to_string(), MOST);
                write!(f, "expected {}, got {}", short(expected), short(actual))
            }
            Self::Error { error } => f.write_str(error),
        }
    }
}

impl From<CaseError> for (String, What) {
    fn from(error: CaseError) -> Self {
        (error.path, What::Error { error: error.message })
    }
}

/// One difference or error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// File, as named by the caller.
    pub file: String,
    /// Group; none if the file is invalid.
    pub group: Option<String>,
    /// Id of the case; none if the file is invalid.
    pub id: Option<String>,
    /// Where in the case.
    pub path: String,
    /// What is wrong there.
    #[serde(flatten)]
    pub what: What,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        for part in [self.group.as_deref(), self.id.as_deref(), Some(self.path.as_str())] {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                write!(f, ": {part}")?;
            }
        }
        write!(f, ": {}", self.what)
    }
}

/// The result of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileReport {
    /// File, as named by the caller.
    pub file: String,
    /// Its group, if it is a case file.
    pub group: Option<String>,
    /// Passed cases.
    pub passed: usize,
    /// Failed cases. An invalid file counts as one.
    pub failed: usize,
    /// Cases of a group that this build does not have.
    pub skipped: usize,
    /// The failures; a failed case has at least one.
    pub failures: Vec<Failure>,
}

impl FileReport {
    pub(crate) fn new(file: &str, group: &str) -> Self {
        Self {
            file: file.to_owned(),
            group: Some(group.to_owned()),
            passed: 0,
            failed: 0,
            skipped: 0,
            failures: Vec::new(),
        }
    }

    /// An invalid file, for example one that could not be read.
    pub fn unusable(file: &str, why: impl Into<String>) -> Self {
        let failure = Failure {
            file: file.to_owned(),
            group: None,
            id: None,
            path: String::new(),
            what: What::Error { error: why.into() },
        };
        Self { group: None, failed: 1, failures: vec![failure], ..Self::new(file, "") }
    }

    /// Counts one case with its failures.
    pub(crate) fn count(&mut self, id: &str, found: Vec<(String, What)>) {
        if found.is_empty() {
            self.passed += 1;
            return;
        }
        self.failed += 1;
        self.failures.extend(found.into_iter().map(|(path, what)| Failure {
            file: self.file.clone(),
            group: self.group.clone(),
            id: Some(id.to_owned()),
            path,
            what,
        }));
    }
}

/// The counts of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupCounts {
    /// Group.
    pub group: String,
    /// Passed cases.
    pub passed: usize,
    /// Failed cases.
    pub failed: usize,
    /// Cases that were not run.
    pub skipped: usize,
}

/// All files added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Passed cases.
    pub passed: usize,
    /// Failed cases, and invalid files.
    pub failed: usize,
    /// Cases of groups that this build does not have.
    pub skipped: usize,
    /// By group, sorted.
    pub groups: Vec<GroupCounts>,
    /// All failures, in the order of the files.
    pub failures: Vec<Failure>,
    /// Groups that this build does not have, sorted.
    pub skipped_groups: Vec<String>,
    /// Every group in the files, run or not.
    #[serde(skip)]
    pub met: BTreeSet<String>,
}

impl Report {
    /// Adds a file.
    pub fn add(&mut self, file: FileReport) {
        self.passed += file.passed;
        self.failed += file.failed;
        self.skipped += file.skipped;
        self.failures.extend(file.failures);
        let Some(group) = file.group else { return };
        self.met.insert(group.clone());
        if file.passed + file.failed + file.skipped == 0 {
            return;
        }
        if file.skipped > 0
            && let Err(at) = self.skipped_groups.binary_search(&group)
        {
            self.skipped_groups.insert(at, group.clone());
        }
        let at = match self.groups.binary_search_by(|counts| counts.group.cmp(&group)) {
            Ok(at) => at,
            Err(at) => {
                self.groups.insert(at, GroupCounts { group, passed: 0, failed: 0, skipped: 0 });
                at
            }
        };
        let counts = &mut self.groups[at];
        counts.passed += file.passed;
        counts.failed += file.failed;
        counts.skipped += file.skipped;
    }

    /// The last line of every run.
    pub fn summary(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
