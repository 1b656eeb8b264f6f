//! A container's `/dev`, `/proc` and `/sys`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use super::Identity;
use super::mounts::{bind, memory, remount_read_only};

/// Harmless devices. A user namespace cannot create device nodes, so these are bind mounts of the
/// host's.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Entries of `/proc` that show or change machine-wide state: hidden.
const HIDDEN: [&str; 9] = [
    "kcore",
    "keys",
    "key-users",
    "timer_list",
    "sched_debug",
    "latency_stats",
    "acpi",
    "asound",
    "scsi",
];

/// Entries of `/proc` that are read-only.
const READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

const HARMLESS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Fills the directory `/dev`.
pub(super) fn add_devices(dev: &Path, owner: Identity) -> io::Result<()> {
    let Identity { uid, gid } = owner;
    memory(dev, &format!("size=1m,nr_inodes=1k,mode=755,uid={uid},gid={gid}"))?;
    for name in DEVICES {
        let node = dev.join(name);
        File::create(&node)?;
        bind(&Path::new("/dev").join(name), &node)?;
        // The device stays writable; its mode and times cannot be changed.
        remount_read_only(&node, MsFlags::MS_NOSUID)?;
    }
    for (name, target) in LINKS {
        symlink(target, dev.join(name))?;
    }
    let (terminals, shared) = (dev.join("pts"), dev.join("shm"));
    fs::create_dir(&terminals)?;
    let options = format!("newinstance,ptmxmode=0666,mode=0620,uid={uid},gid={gid}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), &terminals, Some("devpts"), flags, Some(options.as_str()))?;
    fs::create_dir(&shared)?;
    memory(&shared, &format!("size=64m,nr_inodes=16k,mode=1777,uid={uid},gid={gid}"))
}

/// Mounts a `/proc` of the container's PID namespace, if the kernel allows it.
pub(super) fn add_processes(proc: &Path) -> io::Result<()> {
    if mount(Some("proc"), proc, Some("proc"), HARMLESS, None::<&str>).is_err() {
        bind(Path::new("/proc"), proc)?;
    }
    for path in READ_ONLY.map(|name| proc.join(name)) {
        if path.exists() {
            bind(&path, &path)?;
            remount_read_only(&path, HARMLESS)?;
        }
    }
    for path in HIDDEN.map(|name| proc.join(name)) {
        if path.exists() {
            hide(&path)?;
        }
    }
    Ok(())
}

/// Mounts `/sys` read-only for the container's network; leaves it empty if the kernel does not
/// allow it.
pub(super) fn add_system(sys: &Path) {
    let flags = HARMLESS | MsFlags::MS_RDONLY;
    let _hidden = mount(Some("sysfs"), sys, Some("sysfs"), flags, None::<&str>);
}

/// Hides a file or a directory behind an empty one.
pub(super) fn hide(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        let flags = HARMLESS | MsFlags::MS_RDONLY;
        let options = Some("size=0,nr_inodes=1,mode=555");
        return Ok(mount(Some("tmpfs"), path, Some("tmpfs"), flags, options)?);
    }
    bind(Path::new("/dev/null"), path)?;
    remount_read_only(path, MsFlags::MS_NOSUID)
}
