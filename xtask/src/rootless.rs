//! The lab's tests a second time, as somebody who is not root: user namespaces instead of rights.
//!
//! What they need is copied to where everybody may read it; a checkout may be its owner's alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Verdict;
use crate::step::cargo;

/// `nobody`, on every system.
const NOBODY: u32 = 65534;

/// One of each kind: what is built, driven and torn down, and the demo.
const SUBSET: [&str; 3] = ["commands::", "endings::", "rollout::zones"];

/// Runs them. Whoever is not root has run them all as an ordinary user already.
pub(crate) fn run(root: &Path, nearhop: &Path) -> Result<Verdict> {
    if fs::metadata("/proc/self").context("read /proc")?.uid() != 0 {
        eprintln!("not needed: the tests above were run by an ordinary user");
        return Ok(Verdict::Clean);
    }
    let tests = find_tests(root)?;
    check_subset(&tests)?;
    let place = Place::new()?;
    let tests = place.copy(&tests)?;
    let nearhop = place.copy(nearhop)?;
    let mut command = Command::new(tests);
    command.args(SUBSET).args(["--test-threads", "1"]).current_dir(&place.0);
    command.env("NEARHOP_BINARY", nearhop).env("TMPDIR", &place.0).env("HOME", &place.0);
    command.env_remove("XDG_RUNTIME_DIR").uid(NOBODY).gid(NOBODY);
    let status = command.status().context("run the lab's tests as nobody")?;
    Ok(Verdict::from_success(status.success()))
}

/// A name that no test has any more would pass without a word.
fn check_subset(tests: &Path) -> Result<()> {
    for name in SUBSET {
        let list = Command::new(tests).args([name, "--list"]).output().context("list the tests")?;
        let some = String::from_utf8_lossy(&list.stdout).contains(": test");
        anyhow::ensure!(some, "the lab has no tests `{name}`: choose others to run as nobody");
    }
    Ok(())
}

/// A directory of nobody's; gone with this.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("nearhop-rootless-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        chown(&path, Some(NOBODY), Some(NOBODY))?;
        Ok(Self(path))
    }

    fn copy(&self, file: &Path) -> Result<PathBuf> {
        let copy = self.0.join(file.file_name().context("a file has a name")?);
        fs::copy(file, &copy).with_context(|| format!("copy {}", file.display()))?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        Ok(copy)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It is among the temporary files; whatever stays there goes with them.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The executable, as the tests of the whole workspace build it.
fn find_tests(root: &Path) -> Result<PathBuf> {
    let mut build = cargo();
    build.current_dir(root);
    build.args(["test", "--workspace", "--test", "lab", "--no-run", "--message-format=json"]);
    let output = build.output().context("cargo test --no-run")?;
    find_executable(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn find_executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut ours = messages.filter(|message| message["target"]["name"] == "lab");
    ours.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_of_the_tests_is_found_among_the_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"lab","kind":["lib"]},"executable":null}
not a message
{"reason":"compiler-artifact","target":{"name":"proxy"},"executable":"/t/proxy-1"}
{"reason":"compiler-artifact","target":{"name":"lab","kind":["test"]},"executable":"/t/lab-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(find_executable(messages), Some(PathBuf::from("/t/lab-1")));
        assert_eq!(find_executable(""), None);
    }
}
