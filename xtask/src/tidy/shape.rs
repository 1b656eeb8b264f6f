//! Checks that a source file begins with a module comment and is not too long.

use super::{TextFile, Violation};

/// The maximum number of lines; the aim is 500.
const MAX_LINES: usize = 800;

pub(super) fn check_module_doc(file: &TextFile) -> Option<Violation> {
    let ours = is_crate_source(&file.path) || file.path.starts_with("xtask/src/");
    let source = ours && file.path.ends_with(".rs");
    (source && !file.text.starts_with("//!")).then(|| {
        file.violation(
            1,
            "the file does not begin with a `//!` comment",
            "describe what the module is, why it exists, and what it does not do",
        )
    })
}

pub(super) fn check_length(file: &TextFile) -> Option<Violation> {
    let count = file.text.lines().count();
    (is_crate_source(&file.path) && count > MAX_LINES).then(|| {
        file.violation(
            MAX_LINES + 1,
            format!("the file has {count} lines, more than {MAX_LINES}"),
            "move a part of it to another file",
        )
    })
}

/// `crates/<crate>/src/...` or `crates/<floor>/<crate>/src/...`. Tables (`.txt`) can have
/// any length.
fn is_crate_source(path: &str) -> bool {
    let mut parts = path.split('/');
    let in_src = parts.next() == Some("crates") && parts.skip(1).take(2).any(|part| part == "src");
    in_src && path.ends_with(".rs")
}

#[cfg(test)]
mod tests {
    use super::super::testing::file;
    use super::*;

    #[test]
    fn a_source_without_a_module_comment_is_found() {
        for path in
            ["crates/routing/core/src/hint/auto.rs", "crates/cli/src/main.rs", "xtask/src/main.rs"]
        {
            assert!(check_module_doc(&file(path, "use std::fmt;\n")).is_some());
            assert!(check_module_doc(&file(path, "\n//! Late.\n")).is_some());
            assert!(check_module_doc(&file(path, "")).is_some());
            assert!(check_module_doc(&file(path, "//! What it is.\n")).is_none());
        }
    }

    #[test]
    fn tests_benches_and_data_need_no_module_comment() {
        for path in ["crates/routing/core/tests/props.rs", "crates/routing/core/src/case.txt"] {
            assert!(check_module_doc(&file(path, "x\n")).is_none());
        }
    }

    #[test]
    fn a_file_of_801_lines_is_too_long_and_one_of_800_is_not() {
        let path = "crates/routing/core/src/world.rs";
        assert!(check_length(&file(path, &"x\n".repeat(MAX_LINES))).is_none());
        let long = "x\n".repeat(MAX_LINES + 1);
        assert!(check_length(&file(path, &long)).is_some());
        assert!(check_length(&file("conformance/cases/x.json", &long)).is_none());
    }
}
