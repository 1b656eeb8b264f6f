//! Opens parts of volumes by descriptor.
//!
//! A Pod can change its volumes at any time, also while another of its containers starts. So a
//! `subPath` is opened one name at a time without following links, and mounted by descriptor: no
//! path is resolved twice.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Identity;

/// Opens a volume or a part of it; missing directories are created and belong to the Pod.
pub(super) fn open(volume: &Path, part: &Path, owner: Identity) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(CWD, volume, flags, Mode::empty())?;
    for name in part.components() {
        match name {
            Component::Normal(name) => here = step(&here, Path::new(name), owner)?,
            Component::CurDir => {}
            _ => return Err(io::Error::other("the path leaves the volume")),
        }
    }
    Ok(here)
}

fn step(parent: &OwnedFd, name: &Path, owner: Identity) -> io::Result<OwnedFd> {
    match child(parent, name) {
        Err(Errno::NOENT) => {
            make_directory(parent, name, owner)?;
            Ok(child(parent, name)?)
        }
        Err(Errno::LOOP) => Err(io::Error::other(format!(
            "{} is a symbolic link, which a subPath must not contain",
            name.display()
        ))),
        found => Ok(found?),
    }
}

/// Opens one name in a directory; fails for a symbolic link.
fn child(parent: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), beneath)
}

/// Creates a directory of the Pod, unless it exists.
pub(super) fn make_directory(parent: &OwnedFd, name: &Path, owner: Identity) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(rustix::fs::chownat(
            parent,
            name,
            Some(owner.user()),
            Some(owner.group()),
            AtFlags::SYMLINK_NOFOLLOW,
        )?),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Creates an empty file of the Pod, unless it exists.
pub(super) fn make_file(parent: &OwnedFd, name: &Path, owner: Identity) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => {
            Ok(rustix::fs::fchown(File::from(file), Some(owner.user()), Some(owner.group()))?)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens one name in a directory; for a symbolic link, the link itself.
pub(super) fn look(parent: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

pub(super) fn kind(fd: impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// The target of an open symbolic link.
pub(super) fn target(link: &OwnedFd) -> io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// A path to the open file.
pub(super) fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn opened(volume: &Path, part: &str) -> io::Result<PathBuf> {
        let fd = open(volume, Path::new(part), Identity::current())?;
        fs::read_link(path_of(&fd))
    }

    #[test]
    fn missing_directories_are_created_and_existing_files_opened() {
        let volume = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(volume.path()).unwrap();
        assert_eq!(opened(&root, "").unwrap(), root);
        assert_eq!(opened(&root, "a/./b").unwrap(), root.join("a/b"));
        fs::write(root.join("a/file"), "x").unwrap();
        assert_eq!(opened(&root, "a/file").unwrap(), root.join("a/file"));
        assert!(opened(&root, "a/file/b").is_err(), "a file is not a directory");
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let (volume, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = volume.path();
        fs::create_dir(root.join("inside")).unwrap();
        symlink(victim.path(), root.join("absolute")).unwrap();
        symlink("inside", root.join("relative")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        for part in ["absolute", "absolute/x", "relative/x", "magic/tmp", "dangling", ".."] {
            assert!(opened(root, part).is_err(), "{part}");
        }
        assert!(opened(root, "inside/../../x").is_err());
        assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 0);
    }

    #[test]
    fn symbolic_links_swapped_in_concurrently_are_not_followed() {
        let (volume, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = fs::canonicalize(volume.path()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (place, link) = (root.join("x"), root.join("link"));
                symlink(victim.path(), &link).unwrap();
                while !done.load(Ordering::Relaxed) {
                    // One of the two exists; it is replaced by the other.
                    let _lost = fs::create_dir(&place);
                    let _lost = fs::remove_dir_all(&place);
                    let _lost = fs::rename(&link, &place);
                    let _lost = fs::rename(&place, &link);
                }
            });
            for _ in 0..5_000 {
                if let Ok(found) = opened(&root, "x/y") {
                    assert!(found.starts_with(&root), "{}", found.display());
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 0);
    }
}
