//! Checks the walks in ARCHITECTURE.md and the paths in all pages: every function of a walk exists in
//! its file, and every path exists.
//!
//! A step of a walk is a list item with two code spans: `` 1. `World::apply` in `path/to/file.rs` ``.

use std::collections::BTreeSet;

use super::{TextFile, Violation};

const MAP: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Four walks";
const MIN_STEPS: usize = 20;

pub(super) fn check_walks(files: &[TextFile]) -> Vec<Violation> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else { return Vec::new() };
    let in_section = map
        .lines()
        .skip_while(|(_, line)| *line != SECTION)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let steps: Vec<(usize, &str)> = in_section.filter(|(_, line)| is_step(line)).collect();
    let mut found = Vec::new();
    if steps.len() < MIN_STEPS {
        let what = format!("`{SECTION}` has {} steps, fewer than {MIN_STEPS}", steps.len());
        found.push(map.violation(1, what, "list the functions of each walk in their order"));
    }
    for (number, line) in steps {
        let spans = code_spans(line);
        let [function, path, ..] = spans[..] else {
            let cure = "write it as: 1. `Type::function` in `path/to/file.rs`: what it does";
            found.push(map.violation(number, "the step names no function and file", cure));
            continue;
        };
        let Some(file) = files.iter().find(|file| file.path == path) else {
            found.push(map.violation(
                number,
                format!("`{path}` does not exist"),
                "correct the path",
            ));
            continue;
        };
        let name = function.rsplit("::").next().unwrap_or(function);
        if !defines(file, name) {
            let what = format!("`{path}` has no function `{name}`");
            found.push(map.violation(number, what, "correct the name of the function"));
        }
    }
    found
}

/// Checks the paths of the repository in code spans of pages. The changelog may have old paths.
pub(super) fn check_paths(files: &[TextFile]) -> Vec<Violation> {
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let exists = |path: &str| {
        let directory = format!("{}/", path.trim_end_matches('/'));
        paths.contains(path)
            || paths.range(directory.as_str()..).next().is_some_and(|p| p.starts_with(&directory))
    };
    let pages =
        files.iter().filter(|file| file.path.ends_with(".md") && file.path != "CHANGELOG.md");
    let mut found = Vec::new();
    for page in pages {
        for (number, line) in page.lines() {
            let named = code_spans(line).into_iter().filter(|span| is_path(span));
            for path in named.filter(|path| !exists(path)) {
                let what = format!("`{path}` does not exist");
                found.push(page.violation(number, what, "correct the path"));
            }
        }
    }
    found
}

fn is_step(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    digits.len() < line.len() && digits.starts_with(". ")
}

fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn is_path(span: &str) -> bool {
    let ours = ["crates/", "docs/", "xtask/", "conformance/"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    ours.iter().any(|start| span.starts_with(start)) && span.chars().all(plain)
}

fn defines(file: &TextFile, function: &str) -> bool {
    let needle = format!("fn {function}");
    file.text
        .match_indices(&needle)
        .any(|(at, _)| file.text[at + needle.len()..].starts_with(['(', '<']))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, places};
    use super::*;

    fn map(steps: &str) -> TextFile {
        let filler = "1. `run` in `a.rs`\n".repeat(MIN_STEPS);
        file(
            MAP,
            &format!(
                "# Map\n\n1. `not_here` in `lost.rs`\n\n{SECTION}\n\n{filler}{steps}\n## Next\n\n1. `lost`\n"
            ),
        )
    }

    fn check(steps: &str) -> Vec<String> {
        places(&check_walks(&[
            map(steps),
            file("a.rs", "pub fn run() {}\nfn apply<T>() {}\nfn runs() {}\n"),
        ]))
    }

    #[test]
    fn steps_with_missing_functions_or_files_are_found() {
        assert!(check("2. `World::apply` in `a.rs`: takes it in\n").is_empty());
        let line = 7 + MIN_STEPS;
        assert_eq!(
            check("2. `World::lost` in `a.rs`\n"),
            [format!("{MAP}:{line}: `a.rs` has no function `lost`")]
        );
        assert_eq!(check("2. `World::ru` in `a.rs`\n").len(), 1);
        assert_eq!(check("2. `run` in `b.rs`\n"), [format!("{MAP}:{line}: `b.rs` does not exist")]);
        assert_eq!(check("2. it runs\n").len(), 1);
    }

    #[test]
    fn a_page_without_walks_is_found() {
        let found = check_walks(&[file(MAP, "# Map\n")]);
        assert_eq!(
            places(&found),
            [format!("{MAP}:1: `{SECTION}` has 0 steps, fewer than {MIN_STEPS}")]
        );
    }

    #[test]
    fn missing_paths_in_pages_are_found() {
        let source = file("crates/routing/core/src/lib.rs", "");
        let page = "`crates/routing/core`, `crates/routing/core/src/`, `crates/routing/core/src/lib.rs`, `crates/*/x`\n";
        assert!(check_paths(&[file("docs/a.md", page), source]).is_empty());
        let found = check_paths(&[file("docs/a.md", "see `crates/core/src/lib.rs`\n")]);
        assert_eq!(places(&found), ["docs/a.md:1: `crates/core/src/lib.rs` does not exist"]);
    }
}
