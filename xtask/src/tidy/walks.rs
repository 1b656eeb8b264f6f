//! Checks the walks in ARCHITECTURE.md and the paths in all pages: every function of a walk exists in
//! its file, and every path exists.
//!
//! A step of a walk is a list item with two code spans: `` 1. `World::apply` in `path/to/file.rs` ``.

use std::collections::BTreeSet;

use super::{TextFile, Violation};

const MAP: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Four walks";
const MAPS: &str = "## Maps of the rooms";
/// There are four walks, and none is shorter.
const WALKS: usize = 4;
const MIN_STEPS: usize = 5;

pub(super) fn check_walks(files: &[TextFile]) -> Vec<Violation> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else { return Vec::new() };
    let in_section = map
        .lines()
        .skip_while(|(_, line)| *line != SECTION)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let mut lengths: Vec<usize> = Vec::new();
    let mut steps: Vec<(usize, &str)> = Vec::new();
    for (number, line) in in_section {
        if line.starts_with("### ") {
            lengths.push(0);
        } else if is_step(line) {
            lengths.last_mut().into_iter().for_each(|length| *length += 1);
            steps.push((number, line));
        }
    }
    let mut found = Vec::new();
    if lengths.len() != WALKS || lengths.iter().any(|length| *length < MIN_STEPS) {
        let what = format!("`{SECTION}` has walks with {lengths:?} steps");
        let cure = "list the functions of each of the four walks in their order";
        found.push(map.violation(1, what, cure));
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
        if !defines(file, function) {
            let what = format!("`{path}` has no function `{function}`");
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

/// Checks the modules in the maps: `crate/module` is a file or a directory of that crate.
pub(super) fn check_modules(files: &[TextFile]) -> Vec<Violation> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else { return Vec::new() };
    let exists = |name: &str, module: &str| {
        let (file, directory) =
            (format!("{name}/src/{module}.rs"), format!("{name}/src/{module}/"));
        files.iter().any(|f| f.path.ends_with(&file) || f.path.contains(&directory))
    };
    let in_maps = map.lines().skip_while(|(_, line)| *line != MAPS).skip(1);
    let mut found = Vec::new();
    for (number, line) in in_maps.take_while(|(_, line)| !line.starts_with("## ")) {
        // The first cell of a row.
        let cell = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
        let spans = cell.map(code_spans).unwrap_or_default();
        let modules = spans.into_iter().filter_map(|span| span.split_once('/'));
        for (name, module) in modules.filter(|(name, module)| !exists(name, module)) {
            let what = format!("there is no module `{name}/{module}`");
            found.push(map.violation(number, what, "correct the name of the module"));
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

/// Whether a file defines `function`, or `Type::function` in an `impl` of that type.
fn defines(file: &TextFile, function: &str) -> bool {
    let (of, name) = function.rsplit_once("::").map_or((None, function), |(of, n)| (Some(of), n));
    let needle = format!("fn {name}");
    let mut implemented = "";
    file.text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        if line.starts_with("impl") {
            implemented = line;
        } else if line.starts_with('}') {
            implemented = "";
        }
        let is_type = |word: &str| of.is_none_or(|of| word == of);
        let mut words = implemented.split(|c: char| !c.is_alphanumeric() && c != '_');
        line.match_indices(&needle).any(|(at, _)| line[at + needle.len()..].starts_with(['(', '<']))
            && (of.is_none() || words.any(is_type))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, places};
    use super::*;

    fn map(steps: &str) -> TextFile {
        let walk = format!("### Walk\n{}", "1. `run` in `a.rs`\n".repeat(MIN_STEPS));
        let filler = walk.repeat(WALKS);
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
            file(
                "a.rs",
                "pub fn run() {}\nfn runs() {}\n// fn gone() {}\nimpl World {\n    fn apply<T>() {}\n}\n",
            ),
        ]))
    }

    #[test]
    fn steps_with_missing_functions_or_files_are_found() {
        assert!(check("2. `World::apply` in `a.rs`: takes it in\n").is_empty());
        let line = 7 + WALKS * (MIN_STEPS + 1);
        assert_eq!(
            check("2. `World::lost` in `a.rs`\n"),
            [format!("{MAP}:{line}: `a.rs` has no function `World::lost`")]
        );
        for other in ["World::ru", "Galaxy::apply", "World::run", "gone"] {
            assert_eq!(check(&format!("2. `{other}` in `a.rs`\n")).len(), 1, "{other}");
        }
        assert_eq!(check("2. `run` in `b.rs`\n"), [format!("{MAP}:{line}: `b.rs` does not exist")]);
        assert_eq!(check("2. it runs\n").len(), 1);
    }

    #[test]
    fn a_page_without_walks_is_found() {
        let found = check_walks(&[file(MAP, "# Map\n")]);
        assert_eq!(places(&found), [format!("{MAP}:1: `{SECTION}` has walks with [] steps")]);
    }

    #[test]
    fn missing_modules_in_maps_are_found() {
        let page = |module: &str| {
            let row = format!("| `core/route`, `{module}` | what `core/else` holds |");
            let text = format!("| `core/early` | |\n{MAPS}\n\n{row}\n## Next\n| `core/late` | |\n");
            let source = file("crates/routing/core/src/route/mod.rs", "");
            places(&check_modules(&[file(MAP, &text), source]))
        };
        assert!(page("core/route/mod").is_empty());
        assert_eq!(page("core/lost"), [format!("{MAP}:4: there is no module `core/lost`")]);
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
