//! Runs the lab's tests and the hostile Pods a second time as an unprivileged user, where user
//! namespaces replace root's rights.
//!
//! The executables are copied to a directory that the user can read; a checkout may be readable by
//! its owner alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step::{Done, Keep, Step, cargo};

/// The user `nobody`, on every system.
const NOBODY: u32 = 65534;

/// The name of a step, its test executable, and the filters for its tests. The filters for the lab
/// select tests of start and stop, of `drive`, of `exec`, and of the demo.
const SUBSETS: [(&str, &str, &[&str]); 2] = [
    ("rootless lab", "lab", &["commands::", "endings::", "exec::", "rollout::zones"]),
    ("rootless pods", "pods", &["hostile_"]),
];

/// Runs the subsets as an unprivileged user. If this user is not root, the test step has done so.
pub(crate) fn run(root: &Path, nearhop: &Path, report: &Path) -> Result<Vec<Done>> {
    if fs::metadata("/proc/self").context("read /proc")?.uid() != 0 {
        eprintln!("rootless: not needed, the tests above ran as an unprivileged user");
        return Ok(Vec::new());
    }
    let place = Place::new()?;
    let nearhop = place.copy(nearhop)?;
    let report = place.0.join(report.file_name().context("the path has no file name")?);
    let mut done = Vec::new();
    for (name, target, subset) in SUBSETS {
        let tests = find_tests(root, target)?;
        check_subset(&tests, subset)?;
        let mut command = Command::new(place.copy(&tests)?);
        command.args(subset).args(["--test-threads=1"]).current_dir(&place.0);
        command.env("NEARHOP_BINARY", &nearhop).env("TMPDIR", &place.0).env("HOME", &place.0);
        command.env_remove("XDG_RUNTIME_DIR").uid(NOBODY).gid(NOBODY);
        done.push(Step { name, command, keep: Keep::TestCounts(report.clone()) }.run()?);
    }
    Ok(done)
}

/// A filter that matches no test would pass silently.
fn check_subset(tests: &Path, subset: &[&str]) -> Result<()> {
    for name in subset {
        let list =
            Command::new(tests).args([*name, "--list"]).output().context("list the tests")?;
        let some = String::from_utf8_lossy(&list.stdout).contains(": test");
        anyhow::ensure!(some, "no test matches `{name}`; correct SUBSETS in xtask/src/rootless.rs");
    }
    Ok(())
}

/// A directory of the user `nobody`; dropping it removes it.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("nearhop-rootless-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        chown(&path, Some(NOBODY), Some(NOBODY))?;
        Ok(Self(path))
    }

    fn copy(&self, file: &Path) -> Result<PathBuf> {
        let copy = self.0.join(file.file_name().context("the path has no file name")?);
        fs::copy(file, &copy).with_context(|| format!("copy {}", file.display()))?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        Ok(copy)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // If this fails, the directory stays among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds a test executable with the features of the whole workspace, and returns its path.
fn find_tests(root: &Path, name: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build.current_dir(root);
    build.args(["test", "--workspace", "--test", name, "--no-run", "--message-format=json"]);
    let output = build.output().context("cargo test --no-run")?;
    find_executable(&String::from_utf8_lossy(&output.stdout), name)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn find_executable(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut ours = messages.filter(|message| message["target"]["name"] == name);
    ours.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_executable_is_found_in_the_messages_of_cargo() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"lab","kind":["lib"]},"executable":null}
not a message
{"reason":"compiler-artifact","target":{"name":"proxy"},"executable":"/t/proxy-1"}
{"reason":"compiler-artifact","target":{"name":"lab","kind":["test"]},"executable":"/t/lab-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(find_executable(messages, "lab"), Some(PathBuf::from("/t/lab-1")));
        assert_eq!(find_executable("", "lab"), None);
    }
}
