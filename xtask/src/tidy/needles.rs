//! Finds marks of unfinished work, and paths that exist on one machine only.
//!
//! The texts are assembled from halves, so that tidy does not find them in this file.

use super::{TextFile, Violation};

const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
];

const UNFINISHED_IN: [&str; 4] = ["crates/", "xtask/", "docs/", "README.md"];

/// Beginnings of paths that exist on one machine only.
const WORKPLACES: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

pub(super) fn check_unfinished(file: &TextFile) -> Vec<Violation> {
    if !UNFINISHED_IN.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let cure = "finish the work, or document and test the current behaviour";
    let holds = |line: &str, needle: &str| line.contains(needle);
    find(file, &UNFINISHED, holds, "unfinished", cure)
}

pub(super) fn check_places(file: &TextFile) -> Vec<Violation> {
    let cure = "write the path relative to the repository";
    find(file, &WORKPLACES, has_absolute, "path of one machine", cure)
}

fn find(
    file: &TextFile,
    needles: &[&str],
    holds: impl Fn(&str, &str) -> bool,
    kind: &str,
    cure: &str,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for needle in needles.iter().filter(|needle| holds(line, needle)) {
            found.push(file.violation(number, format!("{kind}: `{needle}`"), cure));
        }
    }
    found
}

/// Whether an absolute path begins with `path`: `a/work/b` and `~/work/b` are relative.
fn has_absolute(line: &str, path: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.~/}>".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, places};
    use super::*;

    #[test]
    fn every_mark_of_unfinished_work_is_found() {
        for needle in UNFINISHED {
            let text = format!("fine\n    // {needle} later)\n");
            for path in ["crates/routing/core/src/a.rs", "docs/a.md", "README.md"] {
                let found = check_unfinished(&file(path, &text));
                assert_eq!(places(&found), [format!("{path}:2: unfinished: `{needle}`")]);
            }
            assert!(check_unfinished(&file("conformance/x.json", &text)).is_empty());
        }
    }

    #[test]
    fn an_absolute_path_is_found_and_a_relative_one_is_not() {
        for needle in WORKPLACES {
            for text in [format!("see {needle}x"), format!("(`{needle}x`)"), needle.to_owned()] {
                assert_eq!(check_places(&file("a.md", &text)).len(), 1, "{text}");
            }
            for text in [format!("net{needle}x"), format!("~{needle}x")] {
                assert!(check_places(&file("a.md", &text)).is_empty(), "{text}");
            }
        }
    }
}
