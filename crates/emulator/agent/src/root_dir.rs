//! The agent's directory: logs, volumes and container specs.
//!
//! The agent deletes leftovers in it at start. So the directory must have been empty at the first
//! start, or have the agent's marker file.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::pod::context::make_private;

/// The marker file.
const MARKER: &str = ".nearhop-agent";

/// Prepares the directory, readable by the agent only, and returns its absolute path, which is
/// valid in the containers' processes too.
pub(crate) fn prepare(root: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(root)?;
    let root = fs::canonicalize(root)?;
    claim(&root)?;
    for left in ["pods", "exec"] {
        let _not_there = fs::remove_dir_all(root.join(left));
        make_private(&root.join(left))?;
    }
    Ok(root)
}

fn claim(root: &Path) -> io::Result<()> {
    let marker = root.join(MARKER);
    if !marker.exists() && fs::read_dir(root)?.next().is_some() {
        return Err(io::Error::other(format!(
            "the directory is not empty and has no file {MARKER}, so it does not belong to an agent, \
             and an agent deletes `pods` and `exec` in it. Cure: set --root-dir to a new or empty \
             directory; if an agent of an earlier version has used this one, create {}",
            marker.display()
        )));
    }
    fs::write(marker, "The directory of a nearhop agent, which deletes files in it.\n")
}

/// A copy of this binary for the Pods' users, if they may not execute the original.
pub(crate) fn copy_binary(root: &Path) -> io::Result<Option<PathBuf>> {
    let others = 0o005;
    let original = Path::new("/proc/self/exe");
    if fs::metadata(original)?.permissions().mode() & others == others {
        return Ok(None);
    }
    let copy = root.join("nearhop");
    // A process of an earlier agent may still run the old copy.
    let _not_there = fs::remove_file(&copy);
    fs::copy(original, &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
    Ok(Some(copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_marker_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let photos = home.path().join("pods/photos");
        fs::create_dir_all(&photos).unwrap();
        let refused = prepare(home.path()).unwrap_err().to_string();
        assert!(refused.contains("--root-dir") && refused.contains(MARKER), "{refused}");
        assert!(photos.exists(), "its files remain");
        assert!(!home.path().join(MARKER).exists(), "no marker is written");
    }

    #[test]
    fn leftovers_of_an_earlier_agent_are_deleted() {
        let parent = tempfile::tempdir().unwrap();
        for root in [parent.path().join("new/one"), parent.path().join("empty")] {
            fs::create_dir_all(root.parent().unwrap()).unwrap();
            if root.ends_with("empty") {
                fs::create_dir(&root).unwrap();
            }
            prepare(&root).unwrap();
            fs::create_dir(root.join("pods/left")).unwrap();
            fs::write(root.join("other"), "kept").unwrap();
            prepare(&root).unwrap();
            assert!(!root.join("pods/left").exists());
            assert!(root.join("other").exists());
        }
    }
}
