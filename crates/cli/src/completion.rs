//! `nearhop completion` and `nearhop manpages`: files for shells and for `man`, made from the same
//! description of the commands as the help.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use clap_complete::Shell;

use crate::output::print;
use crate::{commands, help};

/// Prints a script that completes commands and flags in a shell.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop completion bash > ~/.local/share/bash-completion/completions/nearhop
  nearhop completion zsh > ~/.zfunc/_nearhop       # with ~/.zfunc in fpath, before compinit
  nearhop completion fish > ~/.config/fish/completions/nearhop.fish")]
pub(crate) struct Args {
    /// Shell: bash, elvish, fish, powershell or zsh.
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

/// Writes the manual pages of all commands into a directory.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop manpages ~/.local/share/man/man1
  man nearhop-lab-up                               # then")]
pub(crate) struct ManArgs {
    /// Directory for nearhop.1, nearhop-proxy.1 and so on; it is created if it is missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands::public(), "nearhop", &mut script);
    print(&String::from_utf8(script).context("the script is text")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages and prints where they are.
pub(crate) fn write_man_pages(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let directory = args.directory.display();
    fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot create the directory {directory}"))?;
    clap_mangen::generate_to(help::arrange(commands::all()), &args.directory)
        .with_context(|| format!("cannot write manual pages into {directory}"))?;
    print(&format!("manual pages are in {directory}: man -l {directory}/nearhop.1\n"))?;
    Ok(ExitCode::SUCCESS)
}
