//! Runs the commands of a documentation page as they are, and compares their output in shape.
//!
//! In a block ```` ```console ````, a line with `$ ` starts a command, `> ` continues it, and the
//! lines after it are its output, as in a terminal: standard output and standard error together. A
//! line `...` matches any number of lines. A command without output lines must only succeed; one with
//! `Ctrl-C` in its comment is interrupted after a few seconds. See [`shape`] for the comparison.

pub mod shape;
mod shell;

use std::path::Path;

use anyhow::{Context, Result, bail};

pub use shell::Shell;

use crate::kubectl::fits;

/// One command of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its line in the page.
    pub line: usize,
    /// The title of its section.
    pub section: String,
    /// The command as written, without the prompt.
    pub text: String,
    /// The output that the page shows.
    pub output: Vec<String>,
}

/// The commands of a page in its `console` blocks.
pub fn commands(page: &str) -> Vec<Command> {
    let mut found: Vec<Command> = Vec::new();
    let mut section = "";
    let mut fence = None;
    for (number, line) in page.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(info) };
            continue;
        }
        match fence {
            None => section = line.strip_prefix("## ").unwrap_or(section),
            Some("console") => add(&mut found, number + 1, section, line),
            Some(_) => {}
        }
    }
    for command in &mut found {
        while command.output.last().is_some_and(String::is_empty) {
            command.output.pop();
        }
    }
    found
}

fn add(found: &mut Vec<Command>, line: usize, section: &str, text: &str) {
    if let Some(start) = text.strip_prefix("$ ") {
        let (section, text) = (section.to_owned(), start.to_owned());
        found.push(Command { line, section, text, output: Vec::new() });
    } else if let Some(last) = found.last_mut() {
        match text.strip_prefix("> ") {
            Some(more) if last.output.is_empty() => last.text += &format!("\n{more}"),
            _ => last.output.push(text.to_owned()),
        }
    }
}

/// Reads a page of the repository.
pub fn read(name: &str) -> Result<Vec<Command>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    Ok(commands(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?))
}

/// Runs commands in order. The error shows the first that fails, with its output.
pub fn run(page: &str, commands: &[Command], shell: &mut Shell) -> Result<()> {
    if commands.is_empty() {
        bail!("{page} has no commands");
    }
    for command in commands {
        let (output, code) = shell.run(&command.text)?;
        let at = format!("{page}:{}: {}", command.line, command.text);
        if code != 0 {
            bail!("{at}\nexit code {code}\n{output}");
        }
        if command.output.is_empty() {
            continue;
        }
        let expected = shape::of_lines(command.output.iter().map(String::as_str));
        let actual = shape::of_lines(output.lines());
        if !fits(&expected, &actual) {
            let (expected, actual) = (expected.join("\n  "), actual.join("\n  "));
            bail!(
                "{at}\nthe page has the shape\n  {expected}\nthe command printed\n  {actual}\nthat is\n{output}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_section_continuation_and_output() {
        let page = "## One\ntext\n```console\n$ a \\\n> b\nout\n\n$ c # no output\n```\n```text\n$ d\n```\n## Two\n```console\n$ e\n```\n";
        let found = commands(page);
        let texts: Vec<(&str, &str, usize)> =
            found.iter().map(|one| (one.section.as_str(), one.text.as_str(), one.line)).collect();
        assert_eq!(texts, [("One", "a \\\nb", 4), ("One", "c # no output", 8), ("Two", "e", 15)]);
        assert_eq!(found[0].output, ["out"]);
    }

    #[test]
    fn a_command_that_fails_or_prints_something_else_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let mut shell = Shell::start(scratch.path(), &[]).unwrap();
        let check = |page: &str, shell: &mut Shell| {
            run("p.md", &commands(&format!("```console\n{page}\n```\n")), shell)
        };
        check(
            "$ export A=7\n$ echo \"$A answers in $((0)) zones\"\n3 answers in 0 zones",
            &mut shell,
        )
        .unwrap();
        check("$ sleep 60 # Ctrl-C", &mut shell).unwrap();
        let other = check("$ echo 0 failed\n3 failed", &mut shell).unwrap_err().to_string();
        assert!(other.contains("p.md:2: echo 0 failed"), "{other}");
        let failed = check("$ echo why >&2; false", &mut shell).unwrap_err().to_string();
        assert!(failed.contains("exit code 1\nwhy"), "{failed}");
    }
}
