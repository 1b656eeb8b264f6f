//! The agent's own directory: logs, volumes and what its processes are told.
//!
//! What an earlier agent left in it is deleted, so it must be an agent's: one that was empty when
//! the first agent came, and has had a marker since.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::pod::context::make_private;

/// The file by which an agent knows its directory.
const MARKER: &str = ".nearhop-agent";

/// Makes the directory ready and says where it is: relative paths would mean something else in a
/// container's processes. Nobody else may look at what is in there.
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
            "the directory is not empty and has no file {MARKER}, so it is not an agent's, and an \
             agent deletes what is in `pods` and `exec`. Cure: give --root-dir a new or an empty \
             directory; if an agent of an earlier version has used this one, create {}",
            marker.display()
        )));
    }
    fs::write(marker, "The directory of a nearhop agent, which deletes what is in it.\n")
}

/// A copy of this binary that a Pod's user may run, if he may not run the original.
pub(crate) fn copy_binary(root: &Path) -> io::Result<Option<PathBuf>> {
    let everybody = 0o005;
    let original = Path::new("/proc/self/exe");
    if fs::metadata(original)?.permissions().mode() & everybody == everybody {
        return Ok(None);
    }
    let copy = root.join("nearhop");
    // One that an earlier agent has made may still be run by its last process.
    let _not_there = fs::remove_file(&copy);
    fs::copy(original, &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
    Ok(Some(copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_an_agents_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let photos = home.path().join("pods/photos");
        fs::create_dir_all(&photos).unwrap();
        let refused = prepare(home.path()).unwrap_err().to_string();
        assert!(refused.contains("--root-dir") && refused.contains(MARKER), "{refused}");
        assert!(photos.exists(), "what is in it is somebody's");
        assert!(!home.path().join(MARKER).exists(), "it is not claimed for the next time");
    }

    #[test]
    fn a_directory_of_an_earlier_agent_is_cleared() {
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
