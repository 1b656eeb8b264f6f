//! The conformance suite: runs case files with nearhop's core, and packet cases also with its
//! rules.
//!
//! The input is bytes, the output is a report. A case file is JSON: a `group`, and `cases` with inputs and an `expect`.
//! Each group translates its rows into core's values, calls core, and converts the result to the
//! format of the expectation. This crate makes no routing decisions. `conformance/cases/README.md` describes the files.
//!
//! How a row runs: [`run_file`] reads the file, `groups` finds the group's function, `read` and
//! `objects` turn fields into values, `check` compares with what is expected, `report` counts.

mod check;
mod diff;
pub mod dns;
pub mod flows;
mod groups;
mod objects;
mod read;
mod report;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use check::Check;
use groups::{Case, Run};
pub use read::CaseError;
use read::{Field, parse_file};
pub use report::{Failure, FileReport, GroupCounts, Report, What};

/// The groups to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only(BTreeSet<String>);

impl Only {
    /// All of them.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Whether to run a group.
    pub fn takes(&self, group: &str) -> bool {
        self.0.is_empty() || self.0.contains(group)
    }

    /// The named groups; without names, all groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<S: Into<String>> FromIterator<S> for Only {
    fn from_iter<I: IntoIterator<Item = S>>(groups: I) -> Self {
        Self(groups.into_iter().map(Into::into).collect())
    }
}

/// The groups this build can run, sorted.
pub fn known_groups() -> impl Iterator<Item = &'static str> {
    groups::ALL.iter().map(|(name, _)| *name)
}

/// Runs the cases of one file. `name` appears in the report.
pub fn run_file(name: &str, bytes: &[u8], only: &Only) -> FileReport {
    let report = parse_file(bytes).and_then(|file| run_value(name, &Field::root(&file), only));
    report.unwrap_or_else(|error| FileReport::unusable(name, error.to_string()))
}

/// Runs a parsed file. An error means that the file is not a case file.
fn run_value(name: &str, file: &Field<'_>, only: &Only) -> Result<FileReport, CaseError> {
    let group = file.get("group")?.text()?.to_owned();
    let cases = file.get("cases")?.required()?.list()?;
    let mut report = FileReport::new(name, &group);
    if !only.takes(&group) {
        return Ok(report);
    }
    let Some(run) = groups::find(&group) else {
        report.skipped = cases.len();
        return Ok(report);
    };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (at, row) in cases.iter().enumerate() {
        match unique_id(row, at, &mut seen) {
            Ok(id) => {
                let case = Case { row: row.rebased(), file: file.clone() };
                run_case(run, &case, &id, &mut report);
            }
            Err(error) => report.count(&format!("cases[{at}]"), vec![error.into()]),
        }
    }
    Ok(report)
}

fn unique_id(
    row: &Field<'_>,
    at: usize,
    seen: &mut BTreeMap<String, usize>,
) -> Result<String, CaseError> {
    let id = row.get("id")?;
    let text = id.text()?.to_owned();
    match seen.insert(text.clone(), at) {
        None if !text.is_empty() => Ok(text),
        None => Err(id.error("is empty")),
        Some(first) => Err(id.error(format!("{text:?} is also the id of cases[{first}]"))),
    }
}

/// Runs one case, and counts its results.
fn run_case(run: Run, case: &Case<'_>, id: &str, report: &mut FileReport) {
    match run {
        Run::One(run) => report.count(id, run_one(run, case)),
        Run::Many(run) => match run(case) {
            Ok(parts) => {
                for (part, found) in parts {
                    report.count(&format!("{id}/{part}"), found);
                }
            }
            Err(error) => report.count(id, vec![error.into()]),
        },
    }
}

/// The failures of one case, as paths in the case; empty if it passed.
fn run_one(
    run: fn(&Case<'_>, &mut Check<'_>) -> Result<(), CaseError>,
    case: &Case<'_>,
) -> Vec<(String, What)> {
    let mut check = Check::new(&case.row);
    match run(case, &mut check) {
        Ok(()) => check.finish(),
        Err(error) => {
            let mut found = check.finish_early();
            found.push(error.into());
            found
        }
    }
}
