//! What a container sees instead of the host's root: the host's files, read-only, and its own.
//!
//! A new root in memory holds a mount of each of the host's top-level entries. Where something must
//! be added to a directory of the host's, that directory is *expanded*: a directory in memory, with
//! a mount of each of its entries. `/tmp` is empty; `/etc` is always expanded; `/proc` shows the
//! container's processes where the kernel allows it.
//!
//! An ordinary user in a user namespace can do all of this. He may not take away what is locked
//! (read-only, nosuid, ...), so remounts repeat the flags that a mount has.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chroot, pivot_root};

use super::{Access, ContainerSpec, Mount, Program};

/// Where programs are looked for, unless the container says otherwise.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where every container finds this binary.
const BINARY: &str = ".nearhop";

/// More links than this in one path lead nowhere.
const MAX_LINKS: usize = 40;

/// Changes the calling process's root; it must be alone in its mount namespace, or with those that
/// shall see the same. Says which of the host's mounts could not be made read-only, and why.
pub(super) fn enter(spec: &ContainerSpec) -> Result<Vec<String>, String> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|errno| format!("keep mounts private: {errno}"))?;
    let mut root = Root::new(&spec.root).map_err(|error| format!("make a root: {error}"))?;
    root.copy_host().map_err(|error| format!("mount the host's files: {error}"))?;
    // Only for those who call it by name; a container itself starts without it.
    let _absent = root.add_binary();
    if let Program::BuiltIn(image, _) = &spec.program {
        let _unnamed = root.name_image(image);
    }
    for volume in &spec.mounts {
        let target = volume.target.display();
        root.add(volume).map_err(|error| format!("mountPath {target}: {error}"))?;
    }
    if let Some(directory) = &spec.directory {
        let made = root.prepare(directory, Kind::Directory);
        made.map_err(|error| format!("workingDir {}: {error}", directory.display()))?;
    }
    let open = root.seal().map_err(|error| format!("make mounts read-only: {error}"))?;
    root.change().map_err(|error| format!("change the root: {error}"))?;
    Ok(open)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// Who a place in the container belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Host,
    /// The container, or one of its volumes.
    Pod,
}

struct Root {
    /// Where the new root is, seen from the old one.
    place: PathBuf,
    /// Mounts that are the pod's, by the container's paths: memory and volumes.
    own: BTreeSet<PathBuf>,
    /// Mounts of the host's.
    hosts: BTreeSet<PathBuf>,
}

impl Root {
    fn new(place: &Path) -> io::Result<Self> {
        memory(place, 0o755)?;
        // Otherwise a mount of the directory that the new root is in would hold the new root.
        mount(None::<&str>, place, None::<&str>, MsFlags::MS_UNBINDABLE, None::<&str>)?;
        let own = BTreeSet::from([PathBuf::from("/")]);
        Ok(Self { place: place.to_owned(), own, hosts: BTreeSet::new() })
    }

    /// A path of the container's, seen from the old root.
    fn at(&self, path: &Path) -> PathBuf {
        self.place.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn copy_host(&mut self) -> io::Result<()> {
        self.take_entries(Path::new("/"), &["proc", "tmp"])?;
        self.expand(Path::new("/etc"))?;
        self.memory("/tmp", 0o1777)?;
        fs::create_dir_all(self.at(Path::new("/proc")))?;
        let proc = self.at(Path::new("/proc"));
        if mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), None::<&str>).is_err() {
            bind(Path::new("/proc"), &proc)?;
        }
        self.own.insert("/proc".into());
        if self.at(Path::new("/dev/shm")).is_dir() {
            self.memory("/dev/shm", 0o1777)?;
        }
        Ok(())
    }

    fn memory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let place = self.at(Path::new(path));
        fs::create_dir_all(&place)?;
        memory(&place, mode)?;
        self.own.insert(path.into());
        Ok(())
    }

    /// Mounts what the host has in a directory, one by one.
    fn take_entries(&mut self, directory: &Path, except: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if except.iter().any(|skipped| name == *skipped) {
                continue;
            }
            // What vanished meanwhile or may not be seen is simply not there.
            if self.take(&path).is_ok() {
                self.hosts.insert(path);
            }
        }
        Ok(())
    }

    fn take(&self, path: &Path) -> io::Result<()> {
        let target = self.at(path);
        let kind = fs::symlink_metadata(path)?.file_type();
        if kind.is_symlink() {
            return symlink(fs::read_link(path)?, target);
        }
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
        } else {
            File::create(&target)?;
        }
        bind(path, &target)
    }

    /// Makes a directory of the host's one that entries can be added to.
    fn expand(&mut self, directory: &Path) -> io::Result<()> {
        let mode = fs::metadata(directory).map_or(0o755, |found| found.permissions().mode());
        fs::create_dir_all(self.at(directory))?;
        memory(&self.at(directory), mode & 0o7777)?;
        self.own.insert(directory.to_owned());
        if directory.is_dir() { self.take_entries(directory, &[]) } else { Ok(()) }
    }

    /// So that traffic can be driven from every container, whatever runs in it.
    fn add_binary(&mut self) -> io::Result<()> {
        let binary = fs::read_link("/proc/self/exe")?;
        let target = self.at(Path::new(BINARY));
        File::create(&target)?;
        bind(&binary, &target)
    }

    /// So that `/agnhost` and `/pause` can be called by what runs in the container.
    fn name_image(&mut self, image: &str) -> io::Result<()> {
        let script = self.at(Path::new(image.rsplit('/').next().unwrap_or(image)));
        fs::write(&script, format!("#!/bin/sh\nexec /{BINARY} image {image} \"$@\"\n"))?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))
    }

    fn add(&mut self, volume: &Mount) -> io::Result<()> {
        let kind = if volume.source.is_dir() { Kind::Directory } else { Kind::File };
        let path = self.prepare(&volume.target, kind)?;
        let target = self.at(&path);
        bind(&volume.source, &target)?;
        if volume.access == Access::Read {
            remount_read_only(&target, MsFlags::empty())?;
        }
        self.hosts.remove(&path);
        self.own.insert(path);
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

    /// Sees to it that the path is there, and says what it is once links are followed.
    fn prepare(&mut self, path: &Path, kind: Kind) -> io::Result<PathBuf> {
        let mut left = names(path)?;
        let (mut here, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = left.pop_front() {
            let next = here.join(&name);
            match fs::symlink_metadata(self.at(&next)) {
                Ok(found) if found.is_symlink() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(io::Error::other("too many symbolic links"));
                    }
                    let target = here.join(fs::read_link(self.at(&next))?);
                    let mut whole = names(&target)?;
                    whole.append(&mut left);
                    (left, here) = (whole, PathBuf::from("/"));
                }
                Ok(_) => here = next,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.owner(&here) == Owner::Host {
                        self.expand(&here)?;
                    }
                    match (kind, left.is_empty()) {
                        (Kind::File, true) => drop(File::create(self.at(&next))?),
                        _ => fs::create_dir(self.at(&next))?,
                    }
                    here = next;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(here)
    }

    /// Takes the right to write to the host's mounts away; says where that failed.
    fn seal(&self) -> io::Result<Vec<String>> {
        let mut open = Vec::new();
        for MountPoint { id, point, flags } in parse_mounts(&fs::read("/proc/self/mountinfo")?) {
            let Ok(inside) = point.strip_prefix(&self.place) else { continue };
            let path = Path::new("/").join(inside);
            if self.owner(&path) == Owner::Host
                && let Err(error) = remount_read_only(&point, flags)
                && leads_to(&point, id)
            {
                open.push(format!("{}: {error}", path.display()));
            }
        }
        Ok(open)
    }

    fn change(&self) -> io::Result<()> {
        std::env::set_current_dir(&self.place)?;
        match pivot_root(".", ".") {
            Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
            // The first root of a machine cannot be moved away.
            Err(_) => chroot(".")?,
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

fn memory(place: &Path, mode: u32) -> io::Result<()> {
    let options = format!("mode={mode:o}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some(options.as_str()))?)
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(Some(source), target, None::<&str>, flags, None::<&str>)?)
}

fn remount_read_only(point: &Path, flags: MsFlags) -> io::Result<()> {
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    Ok(mount(None::<&str>, point, None::<&str>, flags, None::<&str>)?)
}

/// Whether a path leads to this mount. One that is hidden below another, or that this process may not
/// even look at, cannot be written to by a container either.
fn leads_to(point: &Path, id: u64) -> bool {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(point);
    let Ok(opened) = opened else { return false };
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()));
    let about = about.unwrap_or_default();
    let found = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    // Where the kernel does not say, it counts as one that can be written to.
    found.and_then(|number| number.trim().parse().ok()).is_none_or(|found: u64| found == id)
}

/// A line of a `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct MountPoint {
    id: u64,
    point: PathBuf,
    /// Those that a remount has to repeat.
    flags: MsFlags,
}

fn parse_mounts(text: &[u8]) -> Vec<MountPoint> {
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
            let mut fields = fields.skip(3);
            let point = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
            let flags = fields.next()?.split(|byte| *byte == b',').map(flag).collect();
            Some(MountPoint { id, point, flags })
        })
        .collect()
}

fn flag(option: &[u8]) -> MsFlags {
    match option {
        b"nosuid" => MsFlags::MS_NOSUID,
        b"nodev" => MsFlags::MS_NODEV,
        b"noexec" => MsFlags::MS_NOEXEC,
        b"noatime" => MsFlags::MS_NOATIME,
        b"nodiratime" => MsFlags::MS_NODIRATIME,
        b"relatime" => MsFlags::MS_RELATIME,
        _ => MsFlags::empty(),
    }
}

/// The kernel writes blanks in paths as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_blanks_and_flags() {
        let text = b"36 35 98:0 /mnt1 /a\\040b/c rw,nosuid,relatime - ext4 /dev/root rw\n\
            37 35 0:5 / /dev ro,nodev,noexec shared:2 - tmpfs tmpfs rw\n";
        let found = parse_mounts(text);
        let mount = |id, point: &str, flags| MountPoint { id, point: point.into(), flags };
        let expected = [
            mount(36, "/a b/c", MsFlags::MS_NOSUID | MsFlags::MS_RELATIME),
            mount(37, "/dev", MsFlags::MS_NODEV | MsFlags::MS_NOEXEC),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_path_leads_to_the_mount_that_is_on_top() {
        let all = parse_mounts(&fs::read("/proc/self/mountinfo").unwrap());
        let proc = all.iter().rfind(|mount| mount.point == Path::new("/proc")).unwrap();
        assert!(leads_to(&proc.point, proc.id));
        assert!(!leads_to(&proc.point, proc.id + 1_000_000), "another mount is hidden");
        assert!(!leads_to(Path::new("/proc/no/such"), proc.id), "nothing is there");
    }

    #[test]
    fn paths_do_not_leave_the_root() {
        let parts = |text: &str| names(Path::new(text)).unwrap();
        assert_eq!(parts("/a/../../b/./c"), ["b", "c"]);
        assert_eq!(parts("/"), [""; 0]);
    }

    #[test]
    fn what_is_not_an_escape_stays() {
        assert_eq!(unescape(br"a\09b\\134"), br"a\09b\\");
    }
}
