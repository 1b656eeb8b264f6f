//! Mounts and mount flags.
//!
//! An ordinary user in a user namespace may do all of this, but cannot clear locked flags
//! (read-only, nosuid, ...); so a remount repeats the existing flags.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Mounts a tmpfs with size, mode and owner in `options`.
pub(super) fn memory(place: &Path, options: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some(options))?)
}

pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(Some(source), target, None::<&str>, flags, None::<&str>)?)
}

/// Remounts read-only, with additional flags.
pub(super) fn remount_read_only(point: &Path, flags: MsFlags) -> io::Result<()> {
    let all = flags | flags_of(point)?;
    let flags = all | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    Ok(mount(None::<&str>, point, None::<&str>, flags, None::<&str>)?)
}

/// The flags that a remount must repeat.
fn flags_of(point: &Path) -> io::Result<MsFlags> {
    let known = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    let there = statvfs(point)?.flags();
    Ok(known.into_iter().filter(|(is, _)| there.contains(*is)).map(|(_, flag)| flag).collect())
}

/// Whether the path resolves to this mount. A container cannot write to a mount that is hidden by
/// another one or not accessible.
pub(super) fn leads_to(point: &Path, id: u64) -> bool {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(point);
    let Ok(opened) = opened else { return false };
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()));
    let about = about.unwrap_or_default();
    let found = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    // Without information from the kernel the mount counts as writable.
    found.and_then(|number| number.trim().parse().ok()).is_none_or(|found: u64| found == id)
}

/// A line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountPoint {
    pub(super) id: u64,
    pub(super) point: PathBuf,
}

pub(super) fn parse_mounts(text: &[u8]) -> Vec<MountPoint> {
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
            let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(3)?)));
            Some(MountPoint { id, point })
        })
        .collect()
}

/// The kernel escapes spaces in paths as `\040`.
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
    fn mount_points_with_spaces_are_parsed() {
        let text = b"36 35 98:0 /mnt1 /a\\040b/c rw,nosuid,relatime - ext4 /dev/root rw\n\
            37 35 0:5 / /dev ro,nodev,noexec shared:2 - tmpfs tmpfs rw\n";
        let found = parse_mounts(text);
        let mount = |id, point: &str| MountPoint { id, point: point.into() };
        assert_eq!(found, [mount(36, "/a b/c"), mount(37, "/dev")]);
    }

    #[test]
    fn a_path_resolves_to_the_top_mount() {
        let all = parse_mounts(&fs::read("/proc/self/mountinfo").unwrap());
        let proc = all.iter().rfind(|mount| mount.point == Path::new("/proc")).unwrap();
        assert!(leads_to(&proc.point, proc.id));
        assert!(!leads_to(&proc.point, proc.id + 1_000_000), "another mount");
        assert!(!leads_to(Path::new("/proc/no/such"), proc.id), "no such path");
    }

    #[test]
    fn invalid_escapes_stay() {
        assert_eq!(unescape(br"a\09b\\134"), br"a\09b\\");
    }
}
