//! Development tasks of the workspace, run as `cargo xtask <command>`.
//!
//! They are a program, not shell scripts: a new machine needs only the Rust toolchain, and the
//! checks have tests. This crate imports no other crate of the workspace, so that it runs when they
//! do not compile.

mod ci;
mod rootless;
mod step;
mod tidy;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [ARGS...]  run all tests, then the conformance cases; ARGS go to the test runner
  ci              run test, some lab tests as an unprivileged user, rustfmt, clippy, docs, tidy
  tidy            check the rules of ARCHITECTURE.md and CONTRIBUTING.md";

/// The result of a command that ran. An error means that it could not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Failed,
}

impl Verdict {
    fn from_success(success: bool) -> Self {
        if success { Self::Clean } else { Self::Failed }
    }
}

fn main() -> ExitCode {
    match run(env::args_os().skip(1).collect()) {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(mut args: Vec<OsString>) -> Result<Verdict> {
    if args.is_empty() {
        anyhow::bail!("no command given\n{USAGE}");
    }
    let rest = args.split_off(1);
    let command = args[0].to_string_lossy();
    match (command.as_ref(), rest.is_empty()) {
        ("test", _) => ci::run_tests(&repo_root()?, &rest),
        ("ci", true) => ci::run_all(&repo_root()?),
        ("tidy", true) => tidy::run(&repo_root()?),
        ("help" | "-h" | "--help", _) => {
            println!("{USAGE}");
            Ok(Verdict::Clean)
        }
        ("ci" | "tidy", false) => anyhow::bail!("`{command}` takes no arguments\n{USAGE}"),
        _ => anyhow::bail!("unknown command `{command}`\n{USAGE}"),
    }
}

/// The root of the repository, read at run time: a moved checkout keeps its executables in `target`.
fn repo_root() -> Result<PathBuf> {
    let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
        .context("CARGO_MANIFEST_DIR is not set: start this program as `cargo xtask`")?;
    let root = PathBuf::from(manifest_dir).join("..");
    root.canonicalize().with_context(|| format!("no repository at {}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(args: &[&str]) -> String {
        run(args.iter().map(OsString::from).collect()).unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_command_line_shows_the_usage() {
        for args in [&[][..], &["tydy"], &["tidy", "--fast"], &["ci", "x"]] {
            assert!(error_of(args).contains("usage: cargo xtask"), "{args:?}");
        }
    }
}
