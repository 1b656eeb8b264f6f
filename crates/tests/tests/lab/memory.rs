//! A lab without `--data-dir` does not wait for a disk, and still loses nothing.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{Lab, Room, TIMEOUT};
use serde_json::json;

use crate::endings::process_ids_of;

/// Bytes that a process has given to a disk; None if the kernel does not count them.
fn written(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
}

/// The regular files that a process has open for writing, without those in memory. Files of a lab are
/// below its directory.
fn files_on_disk(pid: u32, lab: &Path) -> Result<Vec<String>> {
    let memory = lab.join("memory");
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let Ok(path) = fs::read_link(entry.path()) else { continue };
        let info = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0);
        if flags & 3 != 0 && path.starts_with(lab) && !path.starts_with(&memory) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

/// The size of a lab's tmpfs in KiB, in the mount namespace of `lab up`.
fn memory_limit(pid: u32) -> Result<u64> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts"))?;
    let line = mounts.lines().find(|line| line.starts_with("nearhop ")).context("no tmpfs")?;
    let size =
        line.split([' ', ',']).find_map(|word| word.strip_prefix("size=")?.strip_suffix('k'));
    Ok(size.with_context(|| line.to_owned())?.parse()?)
}

fn memory_of_the_machine() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("MemTotal")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// A stall of the disk stopped the API. Now all files of a lab's
/// processes are in memory, and a killed API server finds its objects again.
#[test]
fn a_lab_without_a_data_directory_does_not_wait_for_a_disk() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        let (limit, all) = (memory_limit(lab.pid())?, memory_of_the_machine()?);
        ensure!(limit * 10 < all * 3, "the lab may use {limit} of {all} KiB");
        let room = Room::new(&lab.kubeconfig).await?;
        for n in 0..50 {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}")},
                "data": {"text": "x".repeat(4000)},
            });
            room.create(&object).await?;
        }
        room.server("served", "node-a1", "x", &["netexec"]).await?;
        room.until_ready(&["served"]).await?;
        let runtime = lab.runtime_dir().to_owned();
        let processes = process_ids_of(&runtime)?;
        ensure!(processes.len() > 6, "{processes:?}");
        let mut counted = 0;
        for pid in processes.into_iter().filter(|pid| *pid != lab.pid()) {
            let files = files_on_disk(pid, &runtime.join("nearhop/lab")).unwrap_or_default();
            ensure!(files.is_empty(), "process {pid} writes to {files:?}");
            let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let name = String::from_utf8_lossy(&name).replace('\0', " ");
            if let Some(bytes) = written(pid).filter(|_| name.contains(" apiserver ")) {
                ensure!(bytes == 0, "{name} has written {bytes} bytes to a disk");
                counted += 1;
            }
        }
        if counted == 0 {
            skip("this kernel does not count the bytes that a process writes to a disk");
        }
        lab.fault(&["kill", "apiserver"])?;
        lab.fault(&["start", "apiserver"])?;
        room.until("all objects", TIMEOUT, || async {
            let list = room.get("configmaps").await?;
            let count = list["items"].as_array().context("a list")?.len();
            // One of them is the CA of the cluster.
            Ok(if count >= 50 { Ok(()) } else { Err(format!("{count} objects")) })
        })
        .await
    });
}
