//! What a hostile program tries, as system calls of this binary: a battery that needed `mount`,
//! `unshare` or `python3` would test less on a machine that lacks them.
//!
//! Each attempt prints one line: its name and what the kernel said, or `done` if it succeeded.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

pub(crate) fn main(words: &[&str]) -> ExitCode {
    let told = match words {
        ["remount-rw"] => first_done(mount_points(), remount_rw),
        ["write", file] => said(write(Path::new(file))),
        _ => format!("there is no attack {words:?}"),
    };
    let mut out = std::io::stdout();
    writeln!(out, "{}: {told}", words.first().unwrap_or(&"nothing")).expect("somebody listens");
    ExitCode::SUCCESS
}

fn said(result: Result<(), Errno>) -> String {
    result.map_or_else(|errno| format!("{errno:?}"), |()| "done".to_owned())
}

/// Where it was done, if anywhere; otherwise which errors were met.
fn first_done(places: Vec<PathBuf>, attempt: impl Fn(&Path) -> Result<(), Errno>) -> String {
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

fn mount_points() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

fn remount_rw(point: &Path) -> Result<(), Errno> {
    mount(None::<&str>, point, None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, None::<&str>)
}

fn write(file: &Path) -> Result<(), Errno> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(b"x"));
    written.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))
}
