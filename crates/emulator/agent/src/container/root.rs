//! The file system of a container: the host's programs, read-only, and its own directories.
//!
//! The new root is a tmpfs with a bind mount of each program directory of the host. Nothing else of
//! the host is visible: not `/home`, `/root`, `/run`, `/tmp` or `/var`. To add an entry to a
//! directory of the host, the directory is *expanded*: replaced by a tmpfs with a bind mount of
//! each entry. `/etc` is always expanded.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Component, Path, PathBuf};

use nearhop_net::sandbox::keep_mounts_private;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chroot, pivot_root};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::mounts::{MountPoint, bind, leads_to, memory, parse_mounts, remount_read_only};
use super::{Access, ContainerSpec, EtcFile, Identity, Mount, Program, beneath, devices};

/// The default `PATH`.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The path of this binary in every container.
pub(super) const BINARY: &str = "/.nearhop";

/// The kernel's limit of symbolic links in a path.
const MAX_LINKS: usize = 40;

/// Program directories of common systems.
const PROGRAMS: [&str; 10] =
    ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "opt", "nix", "gnu"];

/// Writable directories of the container.
const OWN: [(&str, u32); 9] = [
    ("/tmp", 0o1777),
    ("/run", 0o755),
    ("/home", 0o755),
    ("/root", 0o700),
    ("/var", 0o755),
    ("/var/tmp", 0o1777),
    ("/var/log", 0o755),
    ("/var/lib", 0o755),
    ("/var/cache", 0o755),
];

/// The sizes of the root and of an expanded directory.
const ROOM: &str = "size=256m,nr_inodes=64k";
const EXPANDED_ROOM: &str = "size=16m,nr_inodes=16k";

/// Changes the root of the calling process and of all processes in its mount namespace.
pub(super) fn enter(spec: &ContainerSpec) -> Result<(), String> {
    keep_mounts_private().map_err(|error| format!("cannot make the mounts private: {error}"))?;
    let root = Root::new(&spec.root, spec.identity);
    let mut root = root.map_err(|error| format!("cannot create the root: {error}"))?;
    root.copy_host(&spec.files)
        .map_err(|error| format!("cannot mount the host's files: {error}"))?;
    // Only built-in images need the binary.
    let _absent = root.add_binary(spec.binary.as_deref());
    if let Program::BuiltIn(image, _) = &spec.program {
        let _unnamed = root.name_image(image);
    }
    for volume in &spec.mounts {
        root.add(volume)?;
    }
    if let Some(directory) = &spec.directory {
        let made = root.prepare(directory, Kind::Directory);
        made.map_err(|error| format!("workingDir {}: {error}", directory.display()))?;
    }
    root.seal().map_err(|error| format!("cannot make the mounts read-only: {error}"))?;
    root.change().map_err(|error| format!("cannot change the root: {error}"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// The owner of a path in the container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Host,
    /// The container, or one of its volumes.
    Pod,
}

/// A mount target.
struct MountTarget {
    /// The path in the container, with links resolved.
    path: PathBuf,
    /// The parent directory; `None` for the root.
    parent: Option<OwnedFd>,
    fd: OwnedFd,
}

impl MountTarget {
    /// Opens the mount on top of the target: `fd` refers to the directory below.
    fn mounted(&self) -> io::Result<OwnedFd> {
        match (&self.parent, self.path.file_name()) {
            (Some(parent), Some(name)) => beneath::look(parent, Path::new(name)),
            _ => Err(io::Error::other("the root cannot be a mount target")),
        }
    }
}

struct Root {
    /// The path of the new root in the old one.
    place: PathBuf,
    /// The owner of the tmpfs files.
    identity: Identity,
    /// Paths of tmpfs and volume mounts.
    own: BTreeSet<PathBuf>,
    /// Paths of the host's mounts.
    hosts: BTreeSet<PathBuf>,
}

impl Root {
    fn new(place: &Path, identity: Identity) -> io::Result<Self> {
        let own = BTreeSet::from([PathBuf::from("/")]);
        let root = Self { place: place.to_owned(), identity, own, hosts: BTreeSet::new() };
        memory(place, &root.options(ROOM, 0o755))?;
        // Otherwise a bind mount of the parent directory would contain the new root.
        mount(None::<&str>, place, None::<&str>, MsFlags::MS_UNBINDABLE, None::<&str>)?;
        Ok(root)
    }

    fn options(&self, room: &str, mode: u32) -> String {
        let Identity { uid, gid } = self.identity;
        format!("{room},mode={mode:o},uid={uid},gid={gid}")
    }

    /// The path in the old root.
    fn at(&self, path: &Path) -> PathBuf {
        self.place.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn copy_host(&mut self, files: &[EtcFile]) -> io::Result<()> {
        for (path, mode) in OWN {
            self.make(Path::new(path), mode)?;
        }
        symlink("/run", self.at(Path::new("/var/run")))?;
        for name in PROGRAMS {
            self.take(&Path::new("/").join(name));
        }
        let skipped: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.expand(Path::new("/etc"), &skipped)?;
        for file in files {
            let target = self.at(Path::new("/etc")).join(&file.name);
            fs::copy(&file.source, &target)?;
            self.give(&target)?;
        }
        for (path, mode) in [("/dev", 0o755), ("/proc", 0o555), ("/sys", 0o555)] {
            self.make(Path::new(path), mode)?;
            self.own.insert(path.into());
        }
        devices::add_devices(&self.at(Path::new("/dev")), self.identity)?;
        devices::add_processes(&self.at(Path::new("/proc")))?;
        devices::add_system(&self.at(Path::new("/sys")));
        Ok(())
    }

    /// Creates a directory of the container.
    fn make(&self, path: &Path, mode: u32) -> io::Result<()> {
        let place = self.at(path);
        fs::create_dir_all(&place)?;
        fs::set_permissions(&place, Permissions::from_mode(mode))?;
        self.give(&place)
    }

    fn give(&self, place: &Path) -> io::Result<()> {
        chown(place, Some(self.identity.uid), Some(self.identity.gid))
    }

    /// Bind-mounts a path of the host. A path that is missing or inaccessible is skipped.
    fn take(&mut self, path: &Path) {
        if self.try_take(path).is_ok() {
            self.hosts.insert(path.to_owned());
        }
    }

    fn try_take(&self, path: &Path) -> io::Result<()> {
        let target = self.at(path);
        let kind = fs::symlink_metadata(path)?.file_type();
        if kind.is_symlink() {
            return symlink(fs::read_link(path)?, target);
        }
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
        } else if kind.is_file() {
            File::create(&target)?;
        } else {
            return Err(io::Error::other("neither a file nor a directory"));
        }
        bind(path, &target)
    }

    /// Replaces a directory of the host by one that can have more entries.
    fn expand(&mut self, directory: &Path, except: &[&str]) -> io::Result<()> {
        let mode = fs::metadata(directory).map_or(0o755, |found| found.permissions().mode());
        let options = self.options(EXPANDED_ROOM, mode & 0o7777);
        fs::create_dir_all(self.at(directory))?;
        memory(&self.at(directory), &options)?;
        self.own.insert(directory.to_owned());
        if !directory.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if except.iter().all(|skipped| name != *skipped) {
                self.take(&path);
            }
        }
        Ok(())
    }

    /// For test traffic from any container.
    fn add_binary(&mut self, copy: Option<&Path>) -> io::Result<()> {
        let binary =
            copy.map_or_else(|| fs::read_link("/proc/self/exe"), |it| Ok(it.to_owned()))?;
        let target = self.at(Path::new(BINARY));
        fs::metadata(&binary)?;
        File::create(&target)?;
        bind(&binary, &target)?;
        self.hosts.insert(BINARY.into());
        Ok(())
    }

    /// Scripts such as `/agnhost` for use inside the container.
    fn name_image(&mut self, image: &str) -> io::Result<()> {
        let script = self.at(Path::new(image.rsplit('/').next().unwrap_or(image)));
        fs::write(&script, format!("#!/bin/sh\nexec {BINARY} image {image} \"$@\"\n"))?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))
    }

    fn add(&mut self, volume: &Mount) -> Result<(), String> {
        let part = volume.sub_path.display();
        let source = beneath::open(&volume.volume, &volume.sub_path, self.identity);
        let source = source.map_err(|error| format!("subPath \"{part}\": {error}"))?;
        let target = volume.target.display();
        self.mount(&source, volume).map_err(|error| format!("mountPath {target}: {error}"))
    }

    fn mount(&mut self, source: &OwnedFd, volume: &Mount) -> io::Result<()> {
        let is_directory = beneath::kind(source)? == FileType::Directory;
        let kind = if is_directory { Kind::Directory } else { Kind::File };
        let spot = self.prepare(&volume.target, kind)?;
        bind(&beneath::path_of(source), &beneath::path_of(&spot.fd))?;
        if volume.access == Access::Read {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            remount_read_only(&beneath::path_of(&spot.mounted()?), flags)?;
        }
        self.hosts.remove(&spot.path);
        self.own.insert(spot.path);
        Ok(())
    }

    fn owner(&self, path: &Path) -> Owner {
        for place in path.ancestors() {
            if self.own.contains(place) {
                return Owner::Pod;
            }
            if self.hosts.contains(place) {
                return Owner::Host;
            }
        }
        Owner::Pod
    }

    /// Creates the path if needed, and resolves its links.
    ///
    /// A Pod can change the links of a volume meanwhile. So each name is opened in its parent
    /// directory, and links are resolved here, inside the root, not by the kernel.
    fn prepare(&mut self, path: &Path, kind: Kind) -> io::Result<MountTarget> {
        let mut left = names(path)?;
        let mut links = 0;
        let mut spot = self.top()?;
        while let Some(name) = left.pop_front() {
            let name = Path::new(&name);
            let next = spot.path.join(name);
            let found = match beneath::look(&spot.fd, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.owner(&spot.path) == Owner::Host {
                        self.expand(&spot.path, &[])?;
                        spot = MountTarget { fd: spot.mounted()?, ..spot };
                    }
                    match (kind, left.is_empty()) {
                        (Kind::File, true) => beneath::make_file(&spot.fd, name, self.identity)?,
                        _ => beneath::make_directory(&spot.fd, name, self.identity)?,
                    }
                    beneath::look(&spot.fd, name)?
                }
                found => found?,
            };
            if beneath::kind(&found)? == FileType::Symlink {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other("too many symbolic links"));
                }
                let mut whole = names(&spot.path.join(beneath::target(&found)?))?;
                whole.append(&mut left);
                (left, spot) = (whole, self.top()?);
            } else {
                spot = MountTarget { path: next, parent: Some(spot.fd), fd: found };
            }
        }
        Ok(spot)
    }

    fn top(&self) -> io::Result<MountTarget> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, &self.place, flags, Mode::empty())?;
        Ok(MountTarget { path: PathBuf::from("/"), parent: None, fd })
    }

    /// Makes the host's mounts read-only; hides those that cannot be.
    fn seal(&self) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        for MountPoint { id, point } in parse_mounts(&fs::read("/proc/self/mountinfo")?) {
            let Ok(inside) = point.strip_prefix(&self.place) else { continue };
            if self.owner(&Path::new("/").join(inside)) == Owner::Host
                && remount_read_only(&point, flags).is_err()
                && leads_to(&point, id)
            {
                devices::hide(&point)?;
            }
        }
        Ok(())
    }

    fn change(&self) -> io::Result<()> {
        std::env::set_current_dir(&self.place)?;
        match pivot_root(".", ".") {
            Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
            // The initial root of a machine cannot be pivoted, so the new root is moved over it.
            Err(_) => {
                mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
                chroot(".")?;
            }
        }
        std::env::set_current_dir("/")
    }
}

fn names(path: &Path) -> io::Result<VecDeque<OsString>> {
    let mut names = VecDeque::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => drop(names.pop_back()),
            Component::RootDir | Component::CurDir => {}
            Component::Prefix(_) => return Err(io::Error::other("not a path of this system")),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_leave_the_root() {
        let parts = |text: &str| names(Path::new(text)).unwrap();
        assert_eq!(parts("/a/../../b/./c"), ["b", "c"]);
        assert_eq!(parts("/"), [""; 0]);
    }
}
