//! Invalid input of `lab up`: a short error names the cure, and no files remain.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::command;

/// The arguments of `lab up`, a file for `--config`, and what the error must contain.
const CASES: [(&[&str], Option<&str>, &[&str]); 19] = [
    (&["--zones", "0"], None, &["at least one zone", "--zones 1 or more"]),
    (&["--nodes-per-zone", "0"], None, &["at least one node", "--nodes-per-zone 1"]),
    (&["--zones", "100", "--nodes-per-zone", "10"], None, &["1000 nodes", "at most 200"]),
    (&[], Some("node n1 zone=a\nnode n1 zone=b\n"), &["n1", "twice|two nodes|already"]),
    (&[], Some("node Big_Node\n"), &["Big_Node", "lower case"]),
    (&[], Some("service s\n"), &["at least one node"]),
    (&[], Some("node n1 colour=red\n"), &["colour", "lab.conf:1:9:"]),
    (&[], Some("node n1 notready\n"), &["lab.conf:1:9: node n1", "notready", "lab fault"]),
    (&[], Some("node n1\npod p for=s on=n1 failed\n"), &["lab.conf:2:19: pod default/p", "failed"]),
    (
        &["--pod-cidr", "10.96.0.0/16,fd00:10:244::/48"],
        None,
        &["10.96.0.0/16 overlaps", "--pod-cidr"],
    ),
    (&["--node-cidr", "10.1.0.0/30,fd00:1::/64"], None, &["--node-cidr", "too small"]),
    (
        &["--pod-cidr", "127.1.0.0/16,fd00:10:244::/48"],
        None,
        &["--pod-cidr 127.1.0.0/16", "loopback"],
    ),
    (&["--data-dir", "/dev/null/x"], None, &["/dev/null/x"]),
    (&[], Some("node n1\npod p for=s on=n2\n"), &["lab.conf:2:13: pod default/p", "no node `n2`"]),
    (&["--service-cidr", "10.96.0.0/16"], None, &["one range of each family"]),
    (&["--kubeconfig", "/no/such/file"], None, &["/no/such/file"]),
    (&["--name", "../etc"], None, &["letters, digits"]),
    (&["--delay", "planet=1s"], None, &["zone=2ms"]),
    (
        &["--controllers", "none", "--node-monitor-grace-period", "8s"],
        None,
        &["--node-monitor-grace-period", "--controllers all"],
    ),
];

#[test]
fn bad_input_is_refused() {
    crate::run(async {
        for (args, config, wanted) in CASES {
            let scratch = tempfile::tempdir()?;
            let file = scratch.path().join("lab.conf");
            let mut command = command(scratch.path())?;
            command.args(["lab", "up"]).args(args);
            if let Some(text) = config {
                std::fs::write(&file, text)?;
                command.arg("--config").arg(&file);
            }
            let output = command.output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(2), "{args:?} {config:?}: {output:?}");
            for words in wanted {
                let any = words.split('|').any(|word| said.contains(word));
                ensure!(any, "{args:?} {config:?}: `{words}` is not in: {said}");
            }
            ensure!(said.trim_end().lines().count() <= 3, "{args:?}: {said}");
            check_nothing_left(scratch.path())?;
        }
        Ok(())
    });
}

fn check_nothing_left(runtime: &std::path::Path) -> Result<()> {
    let found = std::fs::read_dir(runtime.join("nearhop"));
    let labs = found.map_or(0, |all| all.flatten().filter(is_lab).count());
    ensure!(labs == 0, "a lab directory remains");
    Ok(())
}

/// Whether an entry is the directory of a lab; the lock file is not.
fn is_lab(entry: &std::fs::DirEntry) -> bool {
    entry.path().is_dir()
}

/// A port that another process uses, and a name that a lab has.
#[test]
fn ports_and_names_in_use_are_reported() {
    crate::run(async {
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        let scratch = tempfile::tempdir()?;
        let output = command(scratch.path())?.args(["lab", "up", "--listen", &address]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains(&address) && said.contains("another --listen"), "{said}");
        ensure!(said.trim_end().lines().count() == 1, "{said}");
        check_nothing_left(scratch.path())?;

        let lab = nearhop_tests::lab::Lab::up(&["--zones", "1", "--name", "mine"])?;
        let again = lab.run(&["lab", "up", "--name", "mine"])?;
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        ensure!(said.contains("`mine` runs already") && said.contains("another --name"), "{said}");
        Ok(())
    });
}

/// Without root and without user namespaces, the error names the settings that can be the cause.
#[test]
fn missing_namespace_rights_are_explained() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let binary = nearhop_tests::server::binary()?;
        // In a user namespace that cannot create others, without any capabilities.
        let refused = |program: &str| {
            let script = format!(
                "echo 0 > /proc/sys/user/max_user_namespaces && \
                 exec setpriv --inh-caps=-all --bounding-set=-all {program}"
            );
            std::process::Command::new("unshare")
                .args(["--user", "--map-root-user", "sh", "-c", &script])
                .arg(&binary)
                .env("XDG_RUNTIME_DIR", scratch.path())
                .output()
        };
        if !refused("true").is_ok_and(|done| done.status.success()) {
            skip("`unshare` and `setpriv` cannot make a user namespace without rights here");
            return Ok(());
        }
        let output = refused("\"$0\" lab up")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{output:?}");
        ensure!(said.contains("a lab needs root or user namespaces"), "{said}");
        ensure!(said.contains("sudo") && said.contains("user.max_user_namespaces"), "{said}");
        check_nothing_left(scratch.path())
    });
}
