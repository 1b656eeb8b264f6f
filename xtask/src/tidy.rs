//! `cargo xtask tidy`: checks the rules of ARCHITECTURE.md and CONTRIBUTING.md.
//!
//! Tidy reads the repository once. Every check is a pure function from the files to violations, and
//! has a test with a case that must fail. Tidy does not repeat checks of rustfmt and clippy.

mod cases;
mod needles;
mod purity;
mod read;
mod rooms;
mod shape;
mod walks;
mod words;
mod workspace;

use std::fmt;
use std::path::Path;

use anyhow::Result;

use crate::Verdict;
use workspace::Package;

/// The input of the checks. Paths are relative to the root, with `/`.
#[derive(Debug)]
struct Repo {
    files: Vec<TextFile>,
    packages: Vec<Package>,
}

#[derive(Debug)]
struct TextFile {
    path: String,
    text: String,
}

impl TextFile {
    /// The lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    fn violation(&self, line: usize, what: impl Into<String>, cure: &str) -> Violation {
        Violation { path: self.path.clone(), line, what: what.into(), cure: cure.to_owned() }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    what: String,
    cure: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what, cure } = self;
        write!(f, "{path}:{line}: {what}\n    cure: {cure}")
    }
}

pub(crate) fn run(root: &Path) -> Result<Verdict> {
    let repo = read::read_repo(root)?;
    let violations = check_repo(&repo);
    for violation in &violations {
        println!("{violation}");
    }
    let Repo { files, packages } = &repo;
    println!(
        "tidy: {} files, {} crates, {} violations",
        files.len(),
        packages.len(),
        violations.len()
    );
    Ok(Verdict::from_success(violations.is_empty()))
}

fn check_repo(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    found.extend(rooms::check_map(&repo.files, &repo.packages));
    found.extend(rooms::check_directions(&repo.files, &repo.packages));
    found.extend(rooms::check_floors(&repo.files, &repo.packages));
    found.extend(walks::check_walks(&repo.files));
    found.extend(walks::check_paths(&repo.files));
    found.extend(walks::check_modules(&repo.files));
    found.extend(purity::check_dependencies(&repo.files, &repo.packages));
    for file in &repo.files {
        found.extend(purity::check_source(file));
        found.extend(shape::check_module_doc(file));
        found.extend(shape::check_length(file));
        found.extend(needles::check_unfinished(file));
        found.extend(needles::check_places(file));
        found.extend(words::check_words(file));
        found.extend(words::check_log_messages(file));
        found.extend(cases::check_cases(file));
    }
    found.sort();
    found
}

/// Helpers for the tests of the checks.
#[cfg(test)]
mod testing {
    use super::workspace::{Dependency, Kind};
    use super::{Package, TextFile, Violation};

    pub(super) fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|&(name, kind)| Dependency { name: name.to_owned(), kind })
                .collect(),
        }
    }

    pub(super) fn places(violations: &[Violation]) -> Vec<String> {
        let place = |v: &Violation| format!("{}:{}: {}", v.path, v.line, v.what);
        violations.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{file, package};
    use super::*;

    #[test]
    fn violations_are_sorted_and_have_a_cure() {
        let repo = Repo {
            files: vec![
                file("xtask/src/b.rs", "fn b() {}\n"),
                file("xtask/src/a.rs", "fn a() {}\n"),
            ],
            packages: vec![package("xtask", &[])],
        };
        let found = check_repo(&repo);
        let paths: Vec<&str> = found.iter().map(|v| v.path.as_str()).collect();
        assert_eq!(paths, ["ARCHITECTURE.md", "xtask/src/a.rs", "xtask/src/b.rs"]);
        assert!(found[1].to_string().starts_with("xtask/src/a.rs:1: "));
        assert!(found.iter().all(|v| v.to_string().contains("cure: ")));
    }
}
