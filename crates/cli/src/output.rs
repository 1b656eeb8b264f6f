//! Standard output and standard error.

use std::io::{ErrorKind, Write as _, stderr, stdout};

use anyhow::Context as _;
use clap::ValueEnum;

/// `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[value(alias = "table")]
    Text,
    /// For programs.
    Json,
}

/// Prints the result of a command. A reader such as `head` may close the pipe early.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line for the program that started this one, such as the port that was chosen for port
/// 0. A daemon runs on if standard output is closed.
pub(crate) fn announce(line: &str) {
    let _closed = writeln!(stdout(), "{line}");
}

/// Prints a line to standard error. If that is closed, the exit code still shows the error.
pub(crate) fn complain(line: &str) {
    let _closed = writeln!(stderr(), "{line}");
}

/// An error and its causes, each text once.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let error =
            anyhow::anyhow!("no such file").context("--a: no such file").context("cannot start");
        assert_eq!(describe(&error), "cannot start: --a: no such file");
    }
}
