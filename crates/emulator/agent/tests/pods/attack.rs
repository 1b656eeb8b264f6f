//! Attacks of hostile Pods as system calls of this binary, so that they do not depend on `mount`,
//! `unshare` or `python3` of the machine.
//!
//! Each attack prints one line: `outcome: ` and the error, or `done` if it succeeded.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::time::{ClockId, clock_gettime, clock_settime};
use nix::unistd::{Pid, Uid, chroot, pivot_root, sethostname, setresuid};

/// The highest process id to try.
const PROCESSES: i32 = 5000;

pub(crate) fn main(words: &[&str]) -> ExitCode {
    let outcome = attempt(words);
    writeln!(io::stdout(), "outcome: {outcome}").expect("stdout is open");
    ExitCode::SUCCESS
}

fn attempt(words: &[&str]) -> String {
    match words {
        ["remount-rw"] => anywhere(mount_points(), remount_rw),
        ["bind", source, target] => {
            said(mount(Some(*source), *target, None::<&str>, MsFlags::MS_BIND, None::<&str>))
        }
        ["mount", kind] => {
            said(mount(Some(*kind), "/tmp", Some(*kind), MsFlags::empty(), None::<&str>))
        }
        ["umount"] => anywhere(mount_points(), |point| umount2(point, MntFlags::MNT_DETACH)),
        ["pivot-root"] => said(pivot_root("/tmp", "/tmp")),
        ["chroot"] => said(chroot("/tmp")),
        ["user-namespace"] => user_namespace(),
        ["mount-namespace"] => said(unshare(CloneFlags::CLONE_NEWNS)),
        ["write-programs"] => anywhere(directories(), |it| write(&it.join("planted"))),
        ["write", file] => said(write(Path::new(file))),
        ["link", target, link] => said(symlink(target, link).map_err(errno)),
        ["swap", target, place] => swap(Path::new(target), Path::new(place)),
        ["change-binary"] => anywhere(["/proc/1/exe", "/.nearhop"].map(PathBuf::from), change_mode),
        ["read", path] => read(Path::new(path)),
        ["list", path] => list(Path::new(path)),
        ["mknod"] => {
            let (kind, mode) = (SFlag::S_IFBLK, Mode::S_IRUSR);
            said(mknod("/tmp/disk", kind, mode, makedev(254, 0)))
        }
        ["host-devices"] => {
            let names = ["mem", "kmsg", "port", "vda", "sda", "nvme0n1", "kvm", "fuse", "net/tun"];
            let paths = names.map(|name| Path::new("/dev").join(name));
            anywhere(paths, |it| File::open(it).map(drop).map_err(errno))
        }
        ["sysctl"] => sysctl(),
        ["see-processes"] => processes().len().to_string(),
        ["kill-others"] => others(|pid| kill(pid, Signal::SIGKILL)),
        ["ptrace-others"] => others(ptrace::attach),
        ["enter-others"] => {
            others(|pid| File::open(format!("/proc/{pid}/ns/mnt")).map(drop).map_err(errno))
        }
        ["connect", address] => said(connect(address).map_err(errno)),
        ["rights"] => privileges(),
        _ => attempt_on_kernel(words),
    }
}

fn attempt_on_kernel(words: &[&str]) -> String {
    let own_file = || File::create("/tmp/own").map(drop).map_err(errno);
    match words {
        ["set-user"] => {
            let user = Uid::from_raw(1);
            said(setresuid(user, user, user))
        }
        ["chown"] => {
            said(own_file().and_then(|()| chown("/tmp/own", Some(1), None).map_err(errno)))
        }
        ["file-capabilities"] => said(own_file().and_then(|()| add_capability("/tmp/own"))),
        ["load-module"] => said(nix::kmod::init_module(&[0; 64], c"")),
        // To the current time: harmless if it succeeds.
        ["set-clock"] => said(
            clock_gettime(ClockId::CLOCK_REALTIME)
                .and_then(|now| clock_settime(ClockId::CLOCK_REALTIME, now)),
        ),
        ["set-hostname"] => said(sethostname("hostile")),
        ["network"] => said(network()),
        ["fork-bomb"] => fork_bomb(),
        ["fill", place] => said(fill(Path::new(place))),
        ["many-files", place] => said(many_files(Path::new(place))),
        ["log-flood"] => {
            let line = [&[b'x'; 1023][..], b"\n"].concat().repeat(64);
            let written = (0..640).try_for_each(|_| io::stdout().write_all(&line));
            said(written.map_err(errno))
        }
        _ => format!("unknown attack {words:?}"),
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

fn said(result: Result<(), Errno>) -> String {
    result.map_or_else(|errno| format!("{errno:?}"), |()| "done".to_owned())
}

/// Where the attack succeeded; otherwise the errors.
fn anywhere(
    places: impl IntoIterator<Item = PathBuf>,
    attempt: impl Fn(&Path) -> Result<(), Errno>,
) -> String {
    let mut errors = BTreeSet::new();
    let mut done = None;
    for place in places {
        match attempt(&place) {
            Ok(()) => done = done.or(Some(format!("done at {}", place.display()))),
            Err(errno) => drop(errors.insert(format!("{errno:?}"))),
        }
    }
    done.unwrap_or_else(|| errors.into_iter().collect::<Vec<_>>().join(","))
}

fn others(attempt: impl Fn(Pid) -> Result<(), Errno>) -> String {
    let own = i32::try_from(std::process::id()).expect("a process id");
    let numbers = (1..PROCESSES).filter(|it| *it != own);
    let named = |path: &Path| path.to_string_lossy().parse().expect("a number");
    anywhere(numbers.map(|it| it.to_string().into()), |it| attempt(Pid::from_raw(named(it))))
}

fn mount_points() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

fn remount_rw(point: &Path) -> Result<(), Errno> {
    mount(None::<&str>, point, None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, None::<&str>)
}

/// All capabilities in the new namespace, which must not help.
fn user_namespace() -> String {
    match unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS) {
        Ok(()) => anywhere(mount_points(), remount_rw),
        Err(errno) => format!("{errno:?}"),
    }
}

/// The visible directories of the host, and their subdirectories.
fn directories() -> Vec<PathBuf> {
    let tops = ["/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/share", "/opt", "/etc"];
    let inside = tops.iter().filter_map(|top| fs::read_dir(top).ok()).flatten().flatten();
    let inside = inside.map(|it| it.path()).filter(|it| it.is_dir() && !it.is_symlink());
    let tops = tops.iter().filter(|top| **top != "/etc").map(PathBuf::from);
    tops.filter(|top| top.is_dir()).chain(inside).collect()
}

fn write(file: &Path) -> Result<(), Errno> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    // `h` only prints help, if the file is sysrq-trigger.
    opened.and_then(|mut file| file.write_all(b"h")).map_err(errno)
}

/// Swaps a directory and a link until it is killed.
fn swap(target: &Path, place: &Path) -> String {
    let (x, link) = (place.join("x"), place.join("link"));
    let _there = symlink(target, &link);
    loop {
        let _lost = fs::create_dir(&x);
        let _lost = fs::remove_dir_all(&x);
        let _lost = fs::rename(&link, &x);
        let _lost = fs::rename(&x, &link);
    }
}

fn change_mode(file: &Path) -> Result<(), Errno> {
    let mode = fs::metadata(file).map_err(errno)?.permissions().mode();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).map_err(errno)
}

fn read(path: &Path) -> String {
    let read = if path.is_dir() {
        fs::read_dir(path).map(|_| "done".to_owned())
    } else {
        let name = |text: String| if text.is_empty() { "empty" } else { "done" }.to_owned();
        fs::read_to_string(path).map(name)
    };
    read.unwrap_or_else(|error| format!("{:?}", errno(error)))
}

fn list(path: &Path) -> String {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names: BTreeSet<String> =
        entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
}

/// Writes the current value: harmless if it succeeds.
fn sysctl() -> String {
    let names = ["kernel/core_pattern", "kernel/hostname", "kernel/panic", "net/ipv4/ip_forward"];
    anywhere(names.map(|name| Path::new("/proc/sys").join(name)), |file| {
        let present = fs::read(file).map_err(errno)?;
        fs::write(file, present).map_err(errno)
    })
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().to_string_lossy().parse().ok()).collect()
}

fn connect(address: &str) -> io::Result<()> {
    match address.strip_prefix('@') {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?).map(drop),
        None => UnixStream::connect(address).map(drop),
    }
}

/// Effective and bounding capabilities, and no_new_privs.
fn privileges() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().trim_start_matches('0').to_owned()
    };
    format!("{} {} {}", of("CapEff"), of("CapBnd"), of("NoNewPrivs"))
}

fn add_capability(file: &str) -> Result<(), Errno> {
    // Version 2, effective, the first 32 capabilities.
    let value = [1, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(file, "security.capability", &value, flags);
    set.map_err(|error| Errno::from_raw(error.raw_os_error()))
}

/// A raw socket as for ping, and a port below 1024.
fn network() -> Result<(), Errno> {
    let (kind, none) = (SockType::Raw, SockFlag::empty());
    socket(AddressFamily::Inet, kind, none, SockProtocol::Icmp)?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).map(drop).map_err(errno)
}

/// Threads count as processes, and all end with this one.
fn fork_bomb() -> String {
    let never = Arc::new(Barrier::new(usize::MAX));
    for _ in 0..20_000 {
        let never = Arc::clone(&never);
        let thread = thread::Builder::new().stack_size(16 * 1024);
        if let Err(error) = thread.spawn(move || never.wait()) {
            return format!("{:?}", errno(error));
        }
    }
    "done".to_owned()
}

/// Writes 1 GiB.
fn fill(place: &Path) -> Result<(), Errno> {
    let mut file = File::create(place.join("much")).map_err(errno)?;
    let chunk = vec![1; 1 << 20];
    (0..1024).try_for_each(|_| file.write_all(&chunk)).map_err(errno)
}

fn many_files(place: &Path) -> Result<(), Errno> {
    (0..200_000).try_for_each(|n| File::create(place.join(n.to_string())).map(drop).map_err(errno))
}
