//! A lab on a machine that does not help: interrupted at any moment, closed and full pipes, unusable
//! directories. Each time one clear sentence, and nothing remains.

use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{TIMEOUT, command};
use nearhop_tests::server::binary;

use crate::endings::{labs_in, signal, until_gone};

/// Waits for the end of a process; returns its exit code, None after a signal.
fn end_of(process: &mut Child) -> Result<Option<i32>> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > deadline {
            process.kill()?;
            bail!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn check_nothing_left(runtime: &Path) -> Result<()> {
    until_gone(runtime)?;
    if runtime.join("nearhop").exists() {
        ensure!(labs_in(runtime)?.is_empty(), "{:?}", labs_in(runtime)?);
    }
    Ok(())
}

fn until_up(runtime: &Path) -> Result<()> {
    let waited = command(runtime)?.args(["lab", "wait"]).output()?;
    ensure!(waited.status.success(), "{waited:?}");
    Ok(())
}

#[test]
fn a_lab_that_is_interrupted_while_it_starts_leaves_nothing() {
    crate::run(async {
        for (name, millis) in [
            ("-INT", 0),
            ("-INT", 10),
            ("-HUP", 25),
            ("-INT", 50),
            ("-TERM", 100),
            ("-INT", 200),
            ("-HUP", 400),
            ("-INT", 700),
        ] {
            let scratch = tempfile::tempdir()?;
            let mut process = command(scratch.path())?
                .args(["lab", "up"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            std::thread::sleep(Duration::from_millis(millis));
            signal(process.id(), name)?;
            let code = end_of(&mut process).with_context(|| format!("{name} after {millis} ms"))?;
            // No code: it was interrupted before it made anything. 0: it was up already.
            ensure!(matches!(code, None | Some(0 | 130)), "{name} after {millis} ms: {code:?}");
            check_nothing_left(scratch.path()).with_context(|| format!("{name}, {millis} ms"))?;
        }
        Ok(())
    });
}

/// `lab up | head -1`: the lab runs on, and ends with Ctrl-C.
#[test]
fn a_lab_survives_the_end_of_its_reader() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let mut head =
            Command::new("head").arg("-1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipe = head.stdin.take().context("piped")?;
        let mut process = command(scratch.path())?
            .args(["lab", "up", "--zones", "1"])
            .stdin(Stdio::null())
            .stdout(pipe)
            .spawn()?;
        let line = head.wait_with_output()?;
        ensure!(line.stdout.starts_with(b"lab `lab`: 1 zone"), "{line:?}");
        until_up(scratch.path())?;
        // Another command with a closed pipe ends without a word.
        let logs = format!("'{}' lab logs | head -1", binary()?.display());
        let logs = Command::new("sh")
            .args(["-c", &logs])
            .env("XDG_RUNTIME_DIR", scratch.path())
            .output()?;
        ensure!(logs.status.success() && logs.stderr.is_empty(), "{logs:?}");
        signal(process.id(), "-INT")?;
        ensure!(end_of(&mut process)? == Some(0));
        check_nothing_left(scratch.path())
    });
}

/// Standard output is full: the lab works, and ends on request.
#[test]
fn a_full_pipe_does_not_stop_a_lab() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let (_reader, mut writer) = UnixStream::pair()?;
        writer.set_nonblocking(true)?;
        loop {
            match writer.write(&[b'x'; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        writer.set_nonblocking(false)?;
        let mut process = command(scratch.path())?
            .args(["lab", "up", "--zones", "1"])
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(writer))
            .spawn()?;
        until_up(scratch.path())?;
        let down = command(scratch.path())?.args(["lab", "down"]).output()?;
        ensure!(down.status.success(), "{down:?}");
        ensure!(end_of(&mut process)? == Some(0));
        check_nothing_left(scratch.path())
    });
}

/// An `XDG_RUNTIME_DIR` that cannot be used is an error of every command; no other directory
/// is used instead.
#[test]
fn an_unusable_runtime_directory_is_named() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("file");
        std::fs::write(&file, "")?;
        let missing = scratch.path().join("missing");
        for (directory, words) in [
            (missing.as_path(), "does not exist"),
            (file.as_path(), "is not a directory"),
            // Root cannot write there, and it is not another user's.
            (Path::new("/proc"), "cannot be written|belongs to the user with UID 0"),
        ] {
            for args in [&["lab", "up", "--zones", "1"][..], &["lab", "status"], &["lab", "list"]] {
                let only_writes = directory == Path::new("/proc") && args[1] != "up";
                if only_writes {
                    continue;
                }
                let output = command(directory)?.args(args).stdin(Stdio::null()).output()?;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
                let wanted = format!("XDG_RUNTIME_DIR {} ", directory.display());
                ensure!(said.contains(&wanted) && said.contains("unset it"), "{args:?}: {said}");
                ensure!(words.split('|').any(|one| said.contains(one)), "{args:?}: {said}");
                ensure!(said.lines().count() == 1, "{args:?}: {said}");
            }
        }
        ensure!(!missing.exists(), "it was not made");
        Ok(())
    });
}

/// Runs a script with mounts of its own, as root or in a user namespace. None where that is not
/// allowed.
fn with_mounts(script: &str, scratch: &Path) -> Result<Option<std::process::Output>> {
    for flags in [&["--mount"][..], &["--user", "--map-root-user", "--mount"]] {
        let probe = Command::new("unshare")
            .args(flags)
            .args(["mount", "-t", "tmpfs", "x"])
            .arg(scratch)
            .output();
        if !probe.is_ok_and(|probe| probe.status.success()) {
            continue;
        }
        let output = Command::new("unshare")
            .args(flags)
            .args(["sh", "-c", script])
            .arg(binary()?)
            .arg(scratch)
            .stdin(Stdio::null())
            .output()?;
        return Ok(Some(output));
    }
    skip("`unshare` and `mount` cannot mount a tmpfs here");
    Ok(None)
}

#[test]
fn a_full_disk_is_named_and_nothing_is_left() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        // One page is not enough for the files of a lab; the second disk is too small for the objects.
        let runtime = "mount -t tmpfs -o size=4k,mode=0700 x \"$1\" && export XDG_RUNTIME_DIR=\"$1\"; \
                       \"$0\" lab up --zones 1; code=$?; ls \"$1/nearhop\"; exit $code";
        let data = "mount -t tmpfs -o size=1m,mode=0700 x \"$1\" && mkdir \"$1/run\" \"$1/data\" && \
                    export XDG_RUNTIME_DIR=\"$1/run\"; head -c 1000000 /dev/zero > \"$1/full\" 2>&-; \
                    \"$0\" lab up --zones 1 --data-dir \"$1/data\"; code=$?; \
                    ls \"$1/run/nearhop\"; exit $code";
        for script in [runtime, data] {
            let Some(output) = with_mounts(script, scratch.path())? else { return Ok(()) };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(2), "{output:?}");
            ensure!(said.contains("No space left on device"), "{said}");
            ensure!(said.lines().count() == 1, "{said}");
            ensure!(output.stdout == b"lock\n", "{output:?}");
            until_gone(scratch.path())?;
        }
        Ok(())
    });
}

#[test]
fn unusable_files_of_flags_are_named_before_anything_starts() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let directory = scratch.path().display().to_string();
        for (args, wanted) in [
            (["--config", directory.as_str()], "Is a directory"),
            (["--config", "/no/such.lab"], "/no/such.lab"),
            // Not even root can make a directory there.
            (["--data-dir", "/proc/nearhop"], "cannot write to --data-dir /proc/nearhop"),
        ] {
            let output = command(scratch.path())?.args(["lab", "up"]).args(args).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(
                output.status.code() == Some(2) && said.contains(wanted),
                "{args:?}: {output:?}"
            );
            ensure!(said.lines().count() == 1, "{args:?}: {said}");
            check_nothing_left(scratch.path())?;
        }
        Ok(())
    });
}
