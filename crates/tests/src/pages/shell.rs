//! One bash in which the commands of a page run, as in a reader's terminal.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Ends the output of a command.
const END: &str = "@@end-of-command";

/// No command of a page takes this long, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Seconds after which a command with `Ctrl-C` in its comment is interrupted.
const UNTIL_CTRL_C: u32 = 4;

/// A bash that keeps its variables from command to command.
pub struct Shell {
    process: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    scratch: PathBuf,
}

impl Shell {
    /// Starts a bash in the repository, with an empty home directory and runtime directory below
    /// `scratch`, and these directories first in `PATH`.
    pub fn start(scratch: &Path, path: &[PathBuf]) -> Result<Self> {
        let [home, runtime] = ["home", "run"].map(|name| scratch.join(name));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&runtime)?;
        let old = std::env::var_os("PATH").unwrap_or_default();
        let path: Vec<PathBuf> = path.iter().cloned().chain(std::env::split_paths(&old)).collect();
        let mut process = Command::new("bash")
            .args(["--noprofile", "--norc", "-s"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .env("PATH", std::env::join_paths(path)?)
            .env("HOME", home)
            .env("XDG_RUNTIME_DIR", runtime)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("start bash")?;
        let mut stdin = process.stdin.take().context("stdin is piped")?;
        writeln!(stdin, "exec 2>&1")?;
        let output = BufReader::new(process.stdout.take().context("stdout is piped")?);
        let (sender, lines) = mpsc::channel();
        // A thread, because a read of a pipe has no time limit.
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { process, stdin, lines, scratch: scratch.to_owned() })
    }

    /// Runs a command; returns its output and exit code. The text has the paths that a page shows.
    pub fn run(&mut self, command: &str) -> Result<(String, i32)> {
        let file = self.scratch.join("command");
        std::fs::write(&file, with_interrupt(command))?;
        // In a file, so that the command cannot read the next one from its standard input.
        writeln!(self.stdin, ". '{}' </dev/null; printf '\\n{END} %s\\n' $?", file.display())?;
        let deadline = Instant::now() + LIMIT;
        let mut text = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line =
                line.with_context(|| format!("no end after {LIMIT:?}: {command}\n{text}"))?;
            if let Some(code) = line.strip_prefix(END) {
                let code = code.trim().parse().context("exit code")?;
                return Ok((self.as_in_pages(text.trim_end_matches('\n')), code));
            }
            text += &line;
            text.push('\n');
        }
    }

    /// A page has the runtime directory of an ordinary user.
    fn as_in_pages(&self, text: &str) -> String {
        let runtime = self.scratch.join("run").display().to_string();
        let home = self.scratch.join("home").display().to_string();
        text.replace(&runtime, "/run/user/1000").replace(&home, "~")
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With the commands that it runs.
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
    }
}

/// A command that runs until Ctrl-C gets SIGINT after some seconds.
fn with_interrupt(command: &str) -> String {
    let comment = command.split_once(" #").map_or("", |(_, comment)| comment);
    if !comment.contains("Ctrl-C") {
        return command.to_owned();
    }
    let quoted = command.replace('\'', r"'\''");
    // 130 is the exit code after SIGINT, as a shell gives it.
    format!(
        "timeout --preserve-status -s INT -k 10 {UNTIL_CTRL_C} bash -c '{quoted}\n' || [ $? = 130 ]"
    )
}
