//! Limits the logs of a lab's processes, which are in memory.
//!
//! The processes have their logs open for appending, so a file that is too large is copied to
//! `NAME.log.1`, which replaces the earlier copy, and is cut to nothing. Lines that a process writes
//! between the two are lost.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

/// The size limit of all logs together. Their copies take as much again.
const ALL: u64 = 128 << 20;

/// The size limit of one log: an hour of `-v 5` is of no use to a reader.
const ONE: u64 = 8 << 20;

/// Pause between two looks at the sizes.
const POLL: Duration = Duration::from_secs(1);

/// Looks at the logs until it is dropped.
#[derive(Debug)]
pub(crate) struct LogLimit(JoinHandle<()>);

impl Drop for LogLimit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LogLimit {
    pub(crate) fn start(logs: Vec<PathBuf>) -> Self {
        let most = ONE.min(ALL / (logs.len() as u64).max(1));
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(POLL).await;
                for log in &logs {
                    // The memory may be full; the next look tries again.
                    let _ = limit(log, most);
                }
            }
        }))
    }
}

/// The copy with the earlier lines of a log.
pub(crate) fn earlier(log: &Path) -> PathBuf {
    let mut path = log.to_owned().into_os_string();
    path.push(".1");
    PathBuf::from(path)
}

fn limit(log: &Path, most: u64) -> io::Result<()> {
    if fs::metadata(log)?.len() <= most {
        return Ok(());
    }
    let copied = fs::copy(log, earlier(log));
    // Also if there is no room for the copy: otherwise the memory stays full.
    File::options().write(true).open(log)?.set_len(0)?;
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_log_that_is_too_large_keeps_its_newest_lines() {
        let scratch = tempfile::tempdir().expect("a directory");
        let log = scratch.path().join("a.log");
        let mut process = File::options().create(true).append(true).open(&log).expect("a new file");
        let mut most_on_disk = 0;
        for n in 0..1000 {
            writeln!(process, "line {n}").expect("writable");
            limit(&log, 100).expect("ours");
            let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            most_on_disk = most_on_disk.max(size(&log) + size(&earlier(&log)));
        }
        assert!(most_on_disk < 300, "{most_on_disk} bytes");
        let text = fs::read_to_string(earlier(&log)).expect("copied")
            + &fs::read_to_string(&log).expect("there");
        let numbers: Vec<usize> =
            text.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
        assert!(numbers.len() > 5 && numbers.last() == Some(&999), "{text}");
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{text}");
    }
}
