//! Standard output and standard error.

use std::io::{ErrorKind, Write as _, stderr, stdout};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;

use crate::color::paint_message;

/// `-o` of the commands that print a result.
#[derive(Debug, ClapArgs)]
pub(crate) struct OutputArgs {
    /// Output format: text, or json for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    #[value(alias = "table")]
    Text,
    Json,
}

impl OutputArgs {
    /// Prints a result as JSON, or as this text.
    pub(crate) fn print(
        &self,
        result: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self.output {
            Output::Text => print(&text()),
            Output::Json => print_json(result),
        }
    }
}

/// Prints a result as JSON.
pub(crate) fn print_json(result: &impl Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(result)?))
}

/// Prints the result of a command. A reader such as `head` may close the pipe early.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::AutoStream::auto(stdout().lock());
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
    let _closed = writeln!(anstream::AutoStream::auto(stderr()), "{}", paint_message(line));
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: &str) {
    complain(&format!("warning: {text}"));
}

/// The exit code of a process that this command started; 1 if a signal ended it.
pub(crate) fn exit_code(code: Option<i32>) -> ExitCode {
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// An error and its causes, each text once.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    without_codes(&nearhop_runtime::error_chain(error.as_ref()))
}

/// Rust adds `(os error 2)` to a cause that is a sentence already.
fn without_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    plain
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

    #[test]
    fn codes_of_the_operating_system_are_omitted() {
        let error = anyhow::Error::from(std::io::Error::from_raw_os_error(2));
        assert_eq!(describe(&error.context("a.json")), "a.json: No such file or directory");
    }
}
