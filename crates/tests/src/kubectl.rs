//! Runs the kubectl commands of a session file and compares their output.
//!
//! A session is text. `$` starts a command; the lines after it are its expected standard output. `!` starts a text that
//! standard error must contain, `?` the exit code if it is not 0. `$&` starts a command in the background; `$end` stops
//! it, and its expected output follows there. `#` at the start of a line is a comment, `@/` in a command is the
//! session's directory. Values that change from run to run are masked on both sides, and runs of spaces count as two,
//! because column widths depend on those values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// One command and what it must do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Line in the file, for messages.
    pub line: usize,
    /// The command as written.
    pub command: String,
    /// How it is run.
    pub mode: Mode,
    /// Expected standard output.
    pub stdout: Vec<String>,
    /// Pieces that standard error must contain.
    pub stderr: Vec<String>,
    /// Expected exit code.
    pub code: i32,
}

/// How a command is run.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Until it ends.
    #[default]
    Wait,
    /// In the background, while the following commands run.
    Background,
    /// Not a command: stops the command in the background.
    Stop,
}

/// Parses a session.
pub fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let start = |command: &str, mode| Step {
            line: number + 1,
            command: command.trim().into(),
            mode,
            ..Step::default()
        };
        if line.starts_with('#') {
            continue;
        } else if line == "$end" {
            steps.push(start("", Mode::Stop));
        } else if let Some(command) = line.strip_prefix("$&") {
            steps.push(start(command, Mode::Background));
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(start(command, Mode::Wait));
        } else if let Some(step) = steps.last_mut() {
            if let Some(piece) = line.strip_prefix("! ") {
                step.stderr.push(piece.into());
            } else if let Some(code) = line.strip_prefix("? ") {
                step.code = code.trim().parse().unwrap_or(-1);
            } else {
                step.stdout.push(line.into());
            }
        }
    }
    for step in &mut steps {
        while step.stdout.last().is_some_and(|l| l.trim().is_empty()) {
            step.stdout.pop();
        }
    }
    steps
}

/// Splits a command line into words; single and double quotes group words.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A text with the values that change from run to run masked.
pub fn normal(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(normal_line).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

fn normal_line(line: &str) -> String {
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let words: Vec<&str> = line.split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
    let words: Vec<String> = words.iter().map(|w| normal_column(w)).collect();
    format!("{indent}{}", words.join("  "))
}

fn normal_column(column: &str) -> String {
    if is_long_date(column) {
        return "<time>".into();
    }
    let words: Vec<String> = column.split(' ').map(normal_word).collect();
    words.join(" ")
}

fn normal_word(word: &str) -> String {
    let bare = word.trim_matches(['"', '(', ')', ',']);
    let masked = if is_age(bare) {
        "<age>"
    } else if crate::replay::names::is_uuid(bare) {
        "<uid>"
    } else if bare.len() >= 20 && bare.get(10..11) == Some("T") && bare.ends_with('Z') {
        "<time>"
    } else if bare.starts_with("10.96.") && bare != "10.96.0.1" {
        "<ip>"
    } else if bare.starts_with("https://127.0.0.1:") {
        "<url>"
    } else {
        return word.to_owned();
    };
    word.replace(bare, masked)
}

/// Whether a word is an age: `5s`, `3m4s`.
pub(crate) fn is_age(word: &str) -> bool {
    word.len() >= 2
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
}

/// Whether a column is a date as `describe` writes it: `Sun, 15 Nov 2026 20:26:22 +0000`.
fn is_long_date(column: &str) -> bool {
    column.ends_with("+0000") && column.get(3..5) == Some(", ")
}

/// Runs a session.
pub struct Runner {
    /// Path of kubectl.
    pub kubectl: PathBuf,
    /// Path of its kubeconfig.
    pub kubeconfig: PathBuf,
    /// Directory of the session's files.
    pub directory: PathBuf,
    /// Home directory of kubectl, for its caches.
    pub home: PathBuf,
}

impl Runner {
    /// The kubectl on PATH, or the one that `NEARHOP_KUBECTL` names.
    pub fn find() -> Option<PathBuf> {
        if let Some(path) = std::env::var_os("NEARHOP_KUBECTL") {
            return Some(path.into());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|d| d.join("kubectl")).find(|p| p.is_file())
    }

    fn command(&self, line: &str) -> Result<Command> {
        let line = line.replace("@/", &format!("{}/", self.directory.display()));
        let mut environment = BTreeMap::new();
        let mut words = words(&line).into_iter().peekable();
        while let Some((key, value)) = words.peek().and_then(|w| w.split_once('=')) {
            environment.insert(key.to_owned(), value.to_owned());
            words.next();
        }
        if words.next().as_deref() != Some("kubectl") {
            bail!("not a kubectl command: {line}");
        }
        let mut command = Command::new(&self.kubectl);
        command.args(words).envs(environment);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs all steps and returns the differences from the expected results.
    pub fn run(&self, steps: &[Step]) -> Result<Vec<String>> {
        let mut failures = Vec::new();
        let mut background: Option<(&Step, Child)> = None;
        for step in steps {
            match step.mode {
                Mode::Wait => {
                    let output = self.command(&step.command)?.output().context("run kubectl")?;
                    failures.extend(judge(step, &step.command, &output));
                }
                Mode::Background => {
                    let child = self.command(&step.command)?.spawn().context("run kubectl")?;
                    background = Some((step, child));
                    // Discovery and the first list must be complete before the next command writes.
                    std::thread::sleep(Duration::from_millis(1500));
                }
                Mode::Stop => {
                    let (started, mut child) =
                        background.take().context("$end without a command in the background")?;
                    std::thread::sleep(Duration::from_millis(700));
                    // The command may have ended by itself; its output is compared either way.
                    let _ = child.kill();
                    let mut output = child.wait_with_output()?;
                    output.status = std::process::ExitStatus::default();
                    failures.extend(judge(step, &started.command, &output));
                }
            }
        }
        Ok(failures)
    }
}

fn judge(step: &Step, command: &str, output: &Output) -> Vec<String> {
    let mut failures = Vec::new();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut complain = |what: String| {
        failures.push(format!("line {}: {command}\n    {what}", step.line));
    };
    let code = output.status.code().unwrap_or(-1);
    if code != step.code {
        complain(format!("exit code {code}, expected {}; stderr: {stderr}", step.code));
    }
    let expected = normal(&step.stdout.join("\n"));
    let actual = normal(&stdout);
    if !fits(&expected, &actual) {
        let (expected, actual) = (expected.join("\n      "), actual.join("\n      "));
        complain(format!(
            "expected\n      {expected}\n    got\n      {actual}\n    stderr: {stderr}"
        ));
    }
    for piece in step.stderr.iter().filter(|p| !stderr.contains(p.as_str())) {
        complain(format!("stderr lacks {piece:?}: {stderr}"));
    }
    if step.stderr.is_empty() && code == 0 && !stderr.trim().is_empty() && step.code == 0 {
        complain(format!("unexpected on stderr: {stderr}"));
    }
    failures
}

/// Whether lines are as expected; a line `...` matches any number of lines.
pub(crate) fn fits(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=actual.len()).any(|skip| fits(rest, actual.get(skip..).unwrap_or_default()))
        }
        Some((first, rest)) => match actual.split_first() {
            Some((line, others)) => line == first && fits(rest, others),
            None => false,
        },
    }
}

/// Reads a session file.
pub fn read(path: &Path) -> Result<Vec<Step>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_text_is_parsed() {
        let steps = parse(
            "# x\n$ kubectl get svc\nNAME\n\n$ kubectl nope\n! bad\n? 1\n$& kubectl -w\n$end\nweb\n",
        );
        let modes: Vec<&Mode> = steps.iter().map(|s| &s.mode).collect();
        assert_eq!(modes, [&Mode::Wait, &Mode::Wait, &Mode::Background, &Mode::Stop]);
        assert_eq!(steps[0].stdout, ["NAME"]);
        assert_eq!((steps[1].code, steps[1].stderr.as_slice()), (1, ["bad".to_owned()].as_slice()));
        assert_eq!(steps[3].stdout, ["web"]);
    }

    #[test]
    fn words_are_split_as_a_shell_would() {
        assert_eq!(words(r#"a 'b "c"' "d e" f''"#), ["a", r#"b "c""#, "d e", "f"]);
    }

    #[test]
    fn volatile_values_are_masked() {
        assert_eq!(
            normal_line("web   ClusterIP   10.96.4.5   80/TCP   3m4s"),
            "web  ClusterIP  <ip>  80/TCP  <age>"
        );
        assert_eq!(
            normal_line("  RenewTime:   Sun, 15 Nov 2026 20:26:22 +0000"),
            "  RenewTime:  <time>"
        );
        assert_eq!(normal_line("  uid: ecea7527-05d0-4850-9044-40775f50c5d7"), "  uid: <uid>");
    }

    #[test]
    fn dots_match_any_lines() {
        let lines = |t: &str| t.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(fits(&lines("a ... d"), &lines("a b c d")));
        assert!(fits(&lines("a ... d"), &lines("a d")));
        assert!(!fits(&lines("a ... d"), &lines("a b")));
    }
}
