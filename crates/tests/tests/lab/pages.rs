//! The pages that a new user follows: each command runs as it is in the page, and prints what the page
//! shows.

use std::process::Command;

use anyhow::Result;
use nearhop_skip::skip;
use nearhop_tests::kubectl::Runner;
use nearhop_tests::lab::command;
use nearhop_tests::pages::{self, Shell};
use nearhop_tests::server::binary;

use crate::endings::labs_in;

/// The README's quick start shows something new at each line, and leaves nothing.
#[test]
fn the_quick_start_of_the_readme_runs_as_it_is_written() {
    let quick_start = |one: &pages::Command| {
        one.section.starts_with("Try it") || one.section.starts_with("Names answered")
    };
    crate::run(async { follow("README.md", quick_start) });
}

#[test]
fn every_command_of_the_labs_page_runs_as_it_is_written() {
    crate::run(async { follow("docs/lab.md", |_| true) });
}

fn follow(page: &str, wanted: impl Fn(&pages::Command) -> bool) -> Result<()> {
    let Some(kubectl) = Runner::find() else {
        skip("kubectl is not installed");
        return Ok(());
    };
    if Command::new("curl").arg("--version").output().is_err() {
        skip("curl is not installed");
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    let programs = [binary()?, kubectl].map(|path| path.parent().map(Into::into));
    let programs: Vec<_> = programs.into_iter().flatten().collect();
    let mut commands = pages::read(page)?;
    commands.retain(wanted);
    let mut shell = Shell::start(scratch.path(), &programs)?;
    let done = pages::run(page, &commands, &mut shell);
    let left = end_labs(&scratch.path().join("run"))?;
    done?;
    anyhow::ensure!(left.is_empty(), "{page} leaves the labs {left:?}");
    Ok(())
}

/// Ends detached labs, which a page that failed half way leaves. Returns their names.
fn end_labs(runtime: &std::path::Path) -> Result<Vec<String>> {
    let left = if runtime.join("nearhop").exists() { labs_in(runtime)? } else { Vec::new() };
    for name in &left {
        command(runtime)?.args(["lab", "down", "--name", name]).output()?;
    }
    Ok(left)
}
