//! The end of a lab: no processes and no files remain.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_tests::lab::{Lab, Room, command};

/// Processes whose command line contains this directory, as those of a lab do.
pub(crate) fn processes_of(directory: &Path) -> Result<Vec<String>> {
    Ok(find_processes(directory)?.into_iter().map(|(_, line)| line).collect())
}

/// The ids of these processes.
pub(crate) fn process_ids_of(directory: &Path) -> Result<Vec<u32>> {
    Ok(find_processes(directory)?.into_iter().map(|(pid, _)| pid).collect())
}

fn find_processes(directory: &Path) -> Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process may end while they are listed.
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let pid = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(pid) = pid.filter(|_| line.contains(&directory.display().to_string())) {
            found.push((pid, line));
        }
    }
    Ok(found)
}

pub(crate) fn until_gone(directory: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let left = processes_of(directory)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("these processes still run: {left:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn labs_in(runtime: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(runtime.join("nearhop"))?.collect::<Result<Vec<_>, _>>()?;
    let labs = entries.iter().filter(|entry| entry.path().is_dir());
    Ok(labs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

pub(crate) fn signal(pid: u32, name: &str) -> Result<()> {
    let killed = std::process::Command::new("kill").args([name, &pid.to_string()]).status()?;
    ensure!(killed.success());
    Ok(())
}

/// Ctrl-C, `kill` and a closed terminal: the lab removes its directory and all processes, including
/// those of Pods.
#[test]
fn signals_end_a_lab_and_leave_nothing() {
    crate::run(async {
        for name in ["-INT", "-TERM", "-HUP"] {
            let lab = Lab::up(&["--zones", "1"])?;
            let room = Room::new(&lab.kubeconfig).await?;
            room.server("served", "node-a1", "x", &["netexec"]).await?;
            room.until_ready(&["served"]).await?;
            let runtime = lab.runtime_dir().to_owned();
            ensure!(processes_of(&runtime)?.len() > 5, "{:?}", processes_of(&runtime)?);
            signal(lab.pid(), name)?;
            let deadline = Instant::now() + Duration::from_secs(10);
            while !labs_in(&runtime)?.is_empty() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            ensure!(labs_in(&runtime)?.is_empty(), "{name}: {:?}", labs_in(&runtime)?);
            until_gone(&runtime).with_context(|| name.to_owned())?;
        }
        Ok(())
    });
}

/// `kill -9` of the command: its processes end at once, and the next lab removes its files.
#[test]
fn a_killed_lab_leaves_nothing() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        let runtime = lab.runtime_dir().to_owned();
        signal(lab.pid(), "-KILL")?;
        until_gone(&runtime)?;
        ensure!(labs_in(&runtime)? == ["lab"], "{:?}", labs_in(&runtime)?);
        let status = lab.run(&["lab", "status"])?;
        ensure!(String::from_utf8_lossy(&status.stderr).contains("no lab runs"), "{status:?}");
        let next = command(&runtime)?.args(["lab", "up", "--name", "next", "--detach"]).output()?;
        ensure!(next.status.success(), "{next:?}");
        ensure!(labs_in(&runtime)? == ["next"], "{:?}", labs_in(&runtime)?);
        lab.text(&["lab", "down"])?;
        until_gone(&runtime)
    });
}

/// The supervisor is killed: the command removes the lab's processes and files.
#[test]
fn a_lab_with_a_killed_supervisor_leaves_nothing() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        let runtime = lab.runtime_dir().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", lab.pid()))?;
        let supervisor: u32 = children.trim().parse().context("lab up does not have one child")?;
        signal(supervisor, "-KILL")?;
        until_gone(&runtime)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !labs_in(&runtime)?.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(labs_in(&runtime)?.is_empty(), "{:?}", labs_in(&runtime)?);
        Ok(())
    });
}

/// Suspended processes: commands say so within their time limits.
#[test]
fn a_lab_that_does_not_answer_does_not_block_commands() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        lab.fault(&["pause", "apiserver"])?;
        let begun = Instant::now();
        let late = lab.run(&["lab", "wait", "--timeout", "1s"])?;
        let said = String::from_utf8_lossy(&late.stderr).into_owned();
        ensure!(late.status.code() == Some(1), "{late:?}");
        ensure!(said.contains("the lab is not ready after 1 s: no answer"), "{said}");
        lab.fault(&["resume", "apiserver"])?;

        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", lab.pid()))?;
        let supervisor: u32 = children.trim().parse().context("lab up does not have one child")?;
        signal(supervisor, "-STOP")?;
        let late = lab.run(&["lab", "wait", "--timeout", "1s"])?;
        let list = lab.run(&["lab", "list"])?;
        let status = lab.run(&["lab", "status"])?;
        signal(supervisor, "-CONT")?;
        ensure!(late.status.code() == Some(1), "{late:?}");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        ensure!(list.contains("not answering"), "{list}");
        let said = String::from_utf8_lossy(&status.stderr).into_owned();
        ensure!(said.contains("no answer within 5 s"), "{said}");
        // Without limits each of them would have waited for ever.
        ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        lab.text(&["lab", "wait"])?;
        Ok(())
    });
}

/// Two labs with the same node names and addresses run at the same time.
#[test]
fn two_labs_coexist() {
    crate::run(async {
        let one = Lab::up(&["--zones", "1"])?;
        let other =
            command(one.runtime_dir())?.args(["lab", "up", "--zones", "1", "-d"]).output()?;
        ensure!(other.status.success(), "{other:?}");
        let said = String::from_utf8_lossy(&other.stdout).into_owned();
        ensure!(said.contains("lab `lab-2`"), "{said}");
        let which = one.run(&["lab", "status"])?;
        ensure!(String::from_utf8_lossy(&which.stderr).contains("lab, lab-2"), "{which:?}");
        let room = Room::new(&one.kubeconfig).await?;
        room.server("here", "node-a1", "x", &["netexec"]).await?;
        room.until_ready(&["here"]).await?;
        let second = one
            .kubeconfig
            .parent()
            .context("the kubeconfig has no directory")?
            .with_file_name("lab-2");
        let elsewhere = Room::new(&second.join("kubeconfig")).await?;
        elsewhere.server("there", "node-a1", "x", &["netexec"]).await?;
        elsewhere.until_ready(&["there"]).await?;
        one.text(&["lab", "down", "--name", "lab-2"])?;
        ensure!(one.text(&["lab", "status"])?.contains("lab `lab` is up"));
        Ok(())
    });
}
