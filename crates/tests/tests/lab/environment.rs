//! Variables of the caller: those of `lab up` apply, those of other commands do not reach the lab.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nearhop_tests::lab::command;

/// The environment of each process of the lab in this directory that runs this command.
fn environments(directory: &Path, subcommand: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process may end while they are listed.
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let ours = line.contains(&directory.display().to_string());
        if ours && line.split(' ').nth(1) == Some(subcommand) {
            let environment = std::fs::read(path.join("environ"))?;
            found.push(String::from_utf8_lossy(&environment).replace('\0', "\n"));
        }
    }
    Ok(found)
}

#[test]
fn variables_of_other_commands_do_not_reach_the_processes_of_a_lab() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let variables = [
            ("NEARHOP_LAB_UP_DETACH", "1"),
            ("NEARHOP_LAB_UP_ZONES", "1"),
            ("NEARHOP_LAB_UP_NODES_PER_ZONE", ""),
            ("NEARHOP_PROXY_TABLE", "other"),
            ("NEARHOP_TABLE", "other"),
            ("NEARHOP_KUBECONFIG", "/no/such/cluster"),
        ];
        let up = command(scratch.path())?.args(["lab", "up"]).envs(variables).output()?;
        ensure!(up.status.success() && up.stderr.is_empty(), "{up:?}");
        let proxies = environments(scratch.path(), "proxy");
        let down = command(scratch.path())?.args(["lab", "down"]).output()?;
        ensure!(down.status.success(), "{down:?}");
        let proxies = proxies.context("cannot read the environment of the proxies")?;
        // An empty variable leaves the default of two nodes in each zone.
        ensure!(proxies.len() == 2, "{} proxies run", proxies.len());
        for environment in proxies {
            ensure!(!environment.contains("NEARHOP_"), "{environment}");
        }
        Ok(())
    });
}
