//! `lab exec` in a Pod, on a node, outside the cluster and in the control plane: streams, terminals,
//! signals, exit codes, and what is left when it ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{Lab, Room, TIMEOUT, command};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const NODE: &str = "node/node-a1";

/// A lab with a Pod, and the four kinds of targets.
async fn lab() -> Result<(Lab, Vec<String>)> {
    let lab = Lab::up(&["--zones", "1", "--nodes-per-zone", "1"])?;
    let room = Room::new(&lab.kubeconfig).await?;
    room.server("box", "node-a1", "box", &["netexec"]).await?;
    room.until_ready(&["box"]).await?;
    let targets = [NODE, "external", "control-plane"].map(str::to_owned);
    let pod = format!("{}/box", room.namespace);
    Ok((lab, [&targets[..], &[pod]].concat()))
}

/// `nearhop lab exec FLAGS TARGET -- sh -c SCRIPT`.
fn exec(lab: &Lab, flags: &[&str], target: &str, script: &str) -> Result<Command> {
    let mut exec = command(lab.runtime_dir())?;
    exec.args(["lab", "exec"]).args(flags).args([target, "--", "sh", "-c", script]);
    exec.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(exec)
}

/// A running exec; killed when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::piped()).spawn()?))
    }

    fn stdin(&mut self) -> Result<ChildStdin> {
        self.0.stdin.take().context("stdin is piped")
    }

    /// Reads lines of standard output until this one.
    fn read_until(&mut self, wanted: &str) -> Result<()> {
        let mut stdout = BufReader::new(self.0.stdout.take().context("stdout is piped")?);
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            if stdout.read_line(&mut line)? == 0 {
                bail!("no line `{wanted}`");
            }
        }
        self.0.stdout = Some(stdout.into_inner());
        Ok(())
    }

    fn signal(&self, name: &str) -> Result<()> {
        let pid = self.0.id().to_string();
        ensure!(Command::new("kill").args([name, &pid]).status()?.success());
        Ok(())
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("lab exec still runs")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output arrives before the command ends, input arrives while it runs, and both outputs are apart.
#[test]
fn exec_streams_both_ways_to_every_kind_of_target() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            let script = "echo ready; read x; echo got $x; echo no >&2; cat; exit 7";
            let mut running = Running::start(exec(&lab, &["-i"], target, script)?)?;
            running.read_until("ready").with_context(|| target.clone())?;
            let mut stdin = running.stdin()?;
            stdin.write_all(b"it\n")?;
            running.read_until("got it")?;
            stdin.write_all(b"rest")?;
            drop(stdin);
            let (mut out, mut errors) = (String::new(), String::new());
            running.0.stdout.take().context("piped")?.read_to_string(&mut out)?;
            running.0.stderr.take().context("piped")?.read_to_string(&mut errors)?;
            ensure!((&*out, &*errors) == ("rest", "no\n"), "{target}: {out:?} {errors:?}");
            ensure!(running.wait()?.code() == Some(7), "{target}");
            // Without -i the input is empty.
            let mut running = Running::start(exec(&lab, &[], target, "cat; echo end")?)?;
            running.read_until("end")?;
            ensure!(running.wait()?.success(), "{target}");
        }
        Ok(())
    });
}

/// A command that prints much while it reads much.
#[test]
fn exec_passes_much_data_in_both_directions_at_once() {
    const SIZE: usize = 24 * 1024 * 1024;
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            let mut running = Running::start(exec(&lab, &["-i"], target, "cat")?)?;
            let mut stdin = running.stdin()?;
            let sender = std::thread::spawn(move || stdin.write_all(&vec![b'x'; SIZE]));
            let mut out = Vec::new();
            running.0.stdout.take().context("piped")?.read_to_end(&mut out)?;
            sender.join().expect("the sender")?;
            ensure!(out.len() == SIZE, "{target}: {} bytes", out.len());
            ensure!(running.wait()?.success(), "{target}");
        }
        Ok(())
    });
}

#[test]
fn exec_returns_the_exit_codes_of_a_shell() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            let run = |words: &[&str]| lab.run(&[&["lab", "exec", target, "--"], words].concat());
            let scripts = [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)];
            for (script, code) in scripts {
                let ran = run(&["sh", "-c", script])?;
                ensure!(ran.status.code() == Some(code), "{target}: {script}: {ran:?}");
                ensure!(ran.stderr.is_empty(), "{target}: {ran:?}");
            }
            let cases = [
                (127, "nosuchcmd", "nosuchcmd: not found\n"),
                (127, "/no/such/file", "/no/such/file: not found\n"),
                (126, "/etc/passwd", "/etc/passwd: permission denied\n"),
                (126, "/etc", "/etc: is a directory\n"),
            ];
            for (code, program, message) in cases {
                let ran = run(&[program])?;
                let said = String::from_utf8_lossy(&ran.stderr).into_owned();
                ensure!(ran.status.code() == Some(code), "{target}: {program}: {ran:?}");
                ensure!(said == message, "{target}: {said}");
            }
        }
        Ok(())
    });
}

/// Processes with this word in their command line.
fn processes_with(mark: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        // A process may end while they are listed.
        let line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(mark) {
            found.push(line);
        }
    }
    Ok(found)
}

fn until_gone(mark: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = processes_with(mark)?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "these processes still run: {left:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Point 3 of a new user's list: also processes in a session of their own, whose parent has ended.
#[test]
fn an_interrupted_exec_leaves_no_process_behind() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for (n, target) in targets.iter().enumerate() {
            for (m, (signal, code)) in
                [("-INT", Some(130)), ("-TERM", Some(143)), ("-HUP", Some(129)), ("-KILL", None)]
                    .into_iter()
                    .enumerate()
            {
                let mark = format!("86{n}{m}.{}", std::process::id());
                let script = format!("(setsid sleep {mark} &); sleep {mark} & echo up; wait");
                let mut running = Running::start(exec(&lab, &[], target, &script)?)?;
                running.read_until("up")?;
                ensure!(processes_with(&mark)?.len() >= 2, "{target}");
                running.signal(signal)?;
                ensure!(running.wait()?.code() == code, "{target} {signal}");
                until_gone(&mark).with_context(|| format!("{target} {signal}"))?;
            }
            // The same after the end of the command.
            let mark = format!("87{n}.{}", std::process::id());
            let script = format!("(setsid sleep {mark} &); exit 4");
            ensure!(exec(&lab, &[], target, &script)?.status()?.code() == Some(4), "{target}");
            let left = processes_with(&mark)?;
            ensure!(left.is_empty(), "{target}: {left:?}");
        }
        Ok(())
    });
}

/// Input that waits for the command must not hide the end of the connection.
#[test]
fn an_aborted_exec_ends_a_command_that_does_not_read_its_input() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for (n, target) in targets.iter().enumerate() {
            let mark = format!("85{n}.{}", std::process::id());
            let script = format!("echo up; exec sleep {mark}");
            let mut running = Running::start(exec(&lab, &["-i"], target, &script)?)?;
            let mut stdin = running.stdin()?;
            // Ends when the pipe closes.
            let sender =
                std::thread::spawn(move || while stdin.write_all(&[b'x'; 65_536]).is_ok() {});
            running.read_until("up")?;
            std::thread::sleep(Duration::from_millis(500));
            running.signal("-KILL")?;
            running.wait()?;
            until_gone(&mark).with_context(|| target.clone())?;
            sender.join().expect("the sender");
        }
        Ok(())
    });
}

/// A command that ignores the signal is killed by the second one; one that handles it decides.
#[test]
fn a_command_can_handle_ctrl_c_and_a_second_one_kills_it() {
    crate::run(async {
        let (lab, _) = lab().await?;
        let script = "trap 'echo bye; exit 5' INT; echo up; while :; do sleep 0.1; done";
        let mut running = Running::start(exec(&lab, &[], NODE, script)?)?;
        running.read_until("up")?;
        running.signal("-INT")?;
        running.read_until("bye")?;
        ensure!(running.wait()?.code() == Some(5));

        let mark = format!("88.{}", std::process::id());
        let script = format!("trap '' INT; echo up; sleep {mark}");
        let mut running = Running::start(exec(&lab, &[], NODE, &script)?)?;
        running.read_until("up")?;
        running.signal("-INT")?;
        std::thread::sleep(Duration::from_millis(300));
        ensure!(running.0.try_wait()?.is_none(), "the command handles the first signal");
        running.signal("-INT")?;
        ensure!(running.wait()?.code() == Some(130));
        until_gone(&mark)
    });
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            let mark = format!("89.{}", std::process::id());
            let script = format!("while :; do echo {mark}; done");
            let mut running = Running::start(exec(&lab, &[], target, &script)?)?;
            running.read_until(&mark)?;
            drop(running.0.stdout.take());
            ensure!(running.wait()?.code() == Some(141), "{target}");
            let mut errors = String::new();
            running.0.stderr.take().context("piped")?.read_to_string(&mut errors)?;
            ensure!(errors.is_empty(), "{target}: {errors}");
            until_gone(&mark)?;
        }
        Ok(())
    });
}

/// A terminal for a command, and what it has printed.
struct Screen {
    end: OwnedFd,
    text: String,
    more: Receiver<Vec<u8>>,
}

impl Screen {
    /// Starts a command in a terminal of 33 rows and 99 columns.
    fn start(mut command: Command) -> Result<(Self, Running)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let end = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&end)?;
        rustix::pty::unlockpt(&end)?;
        let theirs = rustix::pty::ioctl_tiocgptpeer(&end, flags)?;
        resize(&end, 33, 99)?;
        command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        let running = Running(command.spawn()?);
        let (sender, more) = channel();
        let mut output = File::from(end.try_clone()?);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok((Self { end, text: String::new(), more }, running))
    }

    fn until(&mut self, wanted: &str) -> Result<()> {
        while !self.text.contains(wanted) {
            let bytes = self.more.recv_timeout(TIMEOUT);
            let bytes = bytes.with_context(|| format!("no `{wanted}` in {:?}", self.text))?;
            self.text += &String::from_utf8_lossy(&bytes);
        }
        Ok(())
    }

    fn types(&self, keys: &str) -> Result<()> {
        Ok(File::from(self.end.try_clone()?).write_all(keys.as_bytes())?)
    }

    /// Whether the terminal edits lines, as it does for a shell.
    fn edits_lines(&self) -> Result<bool> {
        Ok(tcgetattr(&self.end)?.local_modes.contains(LocalModes::ICANON))
    }
}

fn resize(end: &OwnedFd, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(end, size)?)
}

/// A terminal of the caller's size, whose keys reach the command, also Ctrl-C.
#[test]
fn exec_runs_a_command_in_a_terminal_that_follows_the_size_of_the_caller() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            // A `read` that a signal interrupts ends; so the script polls the size.
            let script = "test -t 0 && test -t 1 && test -t 2 && tty; stty size; \
                          while test \"$(stty size)\" != '40 120'; do sleep 0.05; done; echo resized; \
                          read line; echo got $line; sleep 1000";
            let (mut screen, mut running) =
                Screen::start(exec(&lab, &["-i", "-t"], target, script)?)?;
            screen.until("/dev/pts/").with_context(|| target.clone())?;
            screen.until("33 99")?;
            ensure!(!screen.edits_lines()?, "{target}: the caller's terminal passes all bytes");
            resize(&screen.end, 40, 120)?;
            running.signal("-WINCH")?;
            screen.until("resized")?;
            screen.types("hello\r")?;
            screen.until("got hello")?;
            // A shell that is about to start a program may ignore one.
            while running.0.try_wait()?.is_none() {
                screen.types("\x03")?;
                std::thread::sleep(Duration::from_millis(100));
            }
            ensure!(running.wait()?.code() == Some(130), "{target}: {}", screen.text);
            ensure!(screen.edits_lines()?, "{target}: the caller's terminal is as before");
        }
        Ok(())
    });
}

#[test]
fn the_terminal_of_the_caller_is_restored_after_a_signal() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        for target in &targets {
            for (signal, code) in [("-TERM", 143), ("-HUP", 129)] {
                let script = "echo up; exec sleep 1000";
                let (mut screen, mut running) =
                    Screen::start(exec(&lab, &["-i", "-t"], target, script)?)?;
                screen.until("up")?;
                running.signal(signal)?;
                ensure!(running.wait()?.code() == Some(code), "{target} {signal}");
                ensure!(screen.edits_lines()?, "{target} {signal}");
            }
        }
        Ok(())
    });
}

/// As kubectl: a pipe is passed unchanged.
#[test]
fn a_terminal_for_input_from_a_pipe_is_refused_with_a_warning() {
    crate::run(async {
        let (lab, _) = lab().await?;
        let mut running = Running::start(exec(&lab, &["-it"], NODE, "tty; od -c | head -1")?)?;
        running.stdin()?.write_all(b"\x03\x04")?;
        let (mut out, mut errors) = (String::new(), String::new());
        running.0.stdout.take().context("piped")?.read_to_string(&mut out)?;
        running.0.stderr.take().context("piped")?.read_to_string(&mut errors)?;
        ensure!(out.contains("not a tty") && out.contains("003 004"), "{out}");
        ensure!(errors.contains("warning: standard input is not a terminal"), "{errors}");
        Ok(())
    });
}

/// Stock kubectl reaches a terminal in a Pod too.
#[test]
fn kubectl_exec_gets_a_terminal_and_the_exit_codes_of_a_shell() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        let (namespace, pod) = targets[3].split_once('/').context("NAMESPACE/POD")?;
        let kubectl = || {
            let mut kubectl = Command::new("kubectl");
            kubectl.env("KUBECONFIG", &lab.kubeconfig).args(["-n", namespace, "exec"]);
            kubectl
        };
        let Ok(ran) = kubectl().args([pod, "--", "nosuchcmd"]).output() else {
            skip("kubectl is not installed");
            return Ok(());
        };
        ensure!(ran.status.code() == Some(127), "{ran:?}");
        ensure!(ran.stderr.starts_with(b"nosuchcmd: not found\n"), "{ran:?}");
        let script = "tty; stty size; read x; echo got $x; exit 6";
        let mut shell = kubectl();
        shell.args(["-it", pod, "--", "sh", "-c", script]);
        let (mut screen, mut running) = Screen::start(shell)?;
        screen.until("/dev/pts/")?;
        screen.until("33 99")?;
        screen.types("it\r")?;
        screen.until("got it")?;
        ensure!(running.wait()?.code() == Some(6), "{}", screen.text);
        Ok(())
    });
}

/// Commands in the lab's networks do not need the API. When the lab ends, exec reports it.
#[test]
fn exec_works_while_the_api_server_is_down_and_reports_the_end_of_the_lab() {
    crate::run(async {
        let (lab, targets) = lab().await?;
        lab.fault(&["kill", "apiserver"])?;
        let (pod, places) = targets.split_last().context("four targets")?;
        for target in places {
            let name = lab.text(&["lab", "exec", target, "--", "echo", "here"])?;
            ensure!(name == "here\n", "{target}: {name}");
        }
        let refused = lab.run(&["lab", "exec", pod, "--", "true"])?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(2), "{refused:?}");
        ensure!(said.contains("box") && said.lines().count() == 1, "{said}");

        let mut running = Running::start(exec(&lab, &[], NODE, "echo up; sleep 1000")?)?;
        running.read_until("up")?;
        lab.text(&["lab", "down"])?;
        ensure!(running.wait()?.code() == Some(2));
        let mut errors = String::new();
        running.0.stderr.take().context("piped")?.read_to_string(&mut errors)?;
        ensure!(
            errors.starts_with("error: the lab has ended, and the command with it"),
            "{errors}"
        );
        Ok(())
    });
}

/// The controller and the manager listen on the loopback of the control plane.
#[test]
fn the_metrics_of_the_controller_are_reachable_from_the_control_plane() {
    crate::run(async {
        let (lab, _) = lab().await?;
        let ask = "exec 3<>/dev/tcp/127.0.0.1/10271; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let text = lab.text(&["lab", "exec", "control-plane", "--", "bash", "-c", ask])?;
        ensure!(text.contains("200 OK") && text.contains("\nnearhop_"), "{text:.300}");
        Ok(())
    });
}
