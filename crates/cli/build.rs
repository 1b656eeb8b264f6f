//! Finds out what `nearhop version` says about the build: commit, its date, compiler, target.
//!
//! Everything is reproducible: there is no clock and no host name. A source tree without git gives a
//! build of an unknown commit; a packager can name it with `NEARHOP_BUILD_COMMIT`. Whether files
//! were changed after the commit is not found out: the answer would be outdated at the next edit.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Marks what is not known.
const UNKNOWN: &str = "";

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = manifest.join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NEARHOP_BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let given = env::var("NEARHOP_BUILD_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| find_commit(&root));
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().filter(|epoch| !epoch.is_empty());
    let date = epoch.or_else(|| date_of(&root, commit.as_deref()?));
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let begin = commit.as_deref().and_then(|commit| commit.get(..12).or(Some(commit)));
    set("SHORT", &begin.map_or(version.clone(), |begin| format!("{version} ({begin})")));
    let text = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    set("COMMIT", &text(commit));
    set("EPOCH", &text(date));
    set("TARGET", &text(env::var("TARGET").ok()));
    set("PROFILE", &text(env::var("PROFILE").ok()));
    set("RUSTC", &text(rustc_version()));
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=NEARHOP_BUILD_{name}={value}");
}

/// The commit of HEAD, read from git's files, so that git itself is not needed.
fn find_commit(root: &Path) -> Option<String> {
    let git = git_directory(&root.join(".git"))?;
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return is_commit(&head).then_some(head) };
    // In a worktree the branches are in the repository that it belongs to.
    let common = read(&git.join("commondir")).map_or(git.clone(), |path| git.join(path));
    if let Some(commit) = read(&common.join(name)).filter(|text| is_commit(text)) {
        return Some(commit);
    }
    // The branch is packed. Its next commit makes a file and an entry in the log.
    let packed = read(&common.join("packed-refs"))?;
    let _watched = read(&git.join("logs/HEAD"));
    let line = packed.lines().find(|line| line.ends_with(&format!(" {name}")))?;
    line.split(' ').next().filter(|text| is_commit(text)).map(str::to_owned)
}

/// `.git` is a directory, or in a worktree a file that names one.
fn git_directory(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let target = read(path)?.strip_prefix("gitdir: ").map(PathBuf::from)?;
    Some(path.parent()?.join(target))
}

/// The date of a commit, in seconds. It is in git's object store, which only git reads.
fn date_of(root: &Path, commit: &str) -> Option<String> {
    let args = ["show", "--no-patch", "--format=%ct", commit];
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let date = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && date.parse::<u64>().is_ok()).then_some(date)
}

fn rustc_version() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().strip_prefix("rustc ").map(str::to_owned)
}

/// Reads a file, and runs this script again when it changes. Cargo runs a script always if a file
/// that it named is missing, so only files that exist are named.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
