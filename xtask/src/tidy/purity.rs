//! Checks that `nearhop-core` is pure: it has only allowed dependencies, and its sources do not use
//! clocks, random numbers, sockets or the environment.
//!
//! This is a text search, not a proof: it finds accidental uses. It includes the tests in the
//! sources, because code whose test needs a clock should take the time as an argument.

use super::rooms::at_manifest;
use super::workspace::Package;
use super::{TextFile, Violation};

const CORE: &str = "nearhop-core";
const CORE_SOURCES: &str = "crates/routing/core/src/";

/// Crates for values, their text form, and errors. None of them has side effects.
const ALLOWED: [&str; 5] = ["ipnet", "jiff", "serde", "serde_json", "thiserror"];

struct Ban {
    name: &'static str,
    cure: &'static str,
}

const TIME: &str = "take the time as an argument, as a `jiff` value";
const RANDOM: &str = "take the random number as an argument";
const EFFECT: &str = "return a value that describes the effect, and perform it in another crate";
const ORDER: &str = "use BTreeMap or BTreeSet: the order must not depend on a seed";
const ENVIRONMENT: &str = "take the setting as an argument";

const BANS: [Ban; 11] = [
    ban("std::time", TIME),
    ban("SystemTime", TIME),
    ban("Instant", TIME),
    ban("std::env", ENVIRONMENT),
    ban("TcpStream", EFFECT),
    ban("TcpListener", EFFECT),
    ban("UdpSocket", EFFECT),
    ban("tokio", EFFECT),
    ban("rand", RANDOM),
    ban("HashMap", ORDER),
    ban("HashSet", ORDER),
];

/// The same modules by their names inside `use std::{...}`.
const STD_BANS: [Ban; 2] = [ban("time", TIME), ban("env", ENVIRONMENT)];

const fn ban(name: &'static str, cure: &'static str) -> Ban {
    Ban { name, cure }
}

/// Checks the external dependencies of core; `rooms` checks those on crates of the workspace.
pub(super) fn check_dependencies(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let Some(core) = packages.iter().find(|package| package.name == CORE) else {
        return Vec::new();
    };
    let ours = |name: &str| packages.iter().any(|package| package.name == name);
    core.non_dev_dependencies()
        .filter(|name| !ALLOWED.contains(name) && !ours(name))
        .map(|name| {
            let what = format!("`{CORE}` must not depend on `{name}`");
            let cure = "use it in another crate, or add it to ALLOWED in xtask/src/tidy/purity.rs";
            at_manifest(files, core, name, what, cure)
        })
        .collect()
}

pub(super) fn check_source(file: &TextFile) -> Vec<Violation> {
    if !file.path.starts_with(CORE_SOURCES) || !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut in_std_group = false;
    for (number, line) in file.lines() {
        let code = without_comment(line);
        in_std_group |= code.contains("use std::{");
        let group_bans: &[Ban] = if in_std_group { &STD_BANS } else { &[] };
        for ban in BANS.iter().chain(group_bans) {
            if has_word(code, ban.name) {
                let what = format!("nearhop-core must not use `{}`", ban.name);
                found.push(file.violation(number, what, ban.cure));
            }
        }
        in_std_group &= !code.contains(';');
    }
    found
}

/// A line without its comment. `//` in a string counts as a comment only after a space, so URLs do
/// not.
fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    line.split(" //").next().unwrap_or(line)
}

fn has_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part_of_name) && !after.is_some_and(part_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, package, places};
    use super::super::workspace::Kind;
    use super::*;

    #[test]
    fn core_depends_only_on_allowed_crates() {
        let core = package(
            CORE,
            &[("serde", Kind::Normal), ("tokio", Kind::Normal), ("proptest", Kind::Dev)],
        );
        let others = package("nearhop", &[("clap", Kind::Normal)]);
        let manifest = file(
            "crates/nearhop-core/Cargo.toml",
            "[dependencies]\nserde = \"1\"\ntokio = \"1\"\n",
        );
        assert_eq!(
            places(&check_dependencies(&[manifest], &[core, others])),
            ["crates/nearhop-core/Cargo.toml:3: `nearhop-core` must not depend on `tokio`"]
        );
    }

    fn banned(text: &str) -> Vec<String> {
        let found = check_source(&file("crates/routing/core/src/world.rs", text));
        found.iter().map(|v| format!("{}:{}", v.line, v.what)).collect()
    }

    #[test]
    fn every_banned_name_is_found() {
        for ban in &BANS {
            let text = format!("//! Doc.\nuse a::b;\nlet x = {}::new();\n", ban.name);
            let expected = format!("3:nearhop-core must not use `{}`", ban.name);
            assert_eq!(banned(&text), [expected]);
        }
    }

    #[test]
    fn names_in_grouped_imports_are_found() {
        let text = "use std::{\n    env,\n    fmt,\n    time::Duration,\n};\nlet env = time();\n";
        assert_eq!(
            banned(text),
            ["2:nearhop-core must not use `env`", "4:nearhop-core must not use `time`"]
        );
    }

    #[test]
    fn comments_and_longer_names_are_ignored() {
        let text =
            "//! No HashMap.\n    /// Instant\nlet operand = 1; // not rand\nstruct Instantly;\n";
        assert!(banned(text).is_empty());
    }

    #[test]
    fn other_crates_can_use_the_clock() {
        let text = "use std::time::Instant;\n";
        assert!(check_source(&file("crates/routing/runtime/src/clock.rs", text)).is_empty());
        assert!(check_source(&file("crates/routing/core/benches/plan.rs", text)).is_empty());
    }
}
