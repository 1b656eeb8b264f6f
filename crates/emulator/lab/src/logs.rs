//! The logs of a lab's processes: one file each, to which every new start of a process appends.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use crate::LabError;
use crate::control::Status;
use crate::spec::log_file;

/// The pause between two looks at the files.
const POLL: Duration = Duration::from_millis(100);

/// What to print of each log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// All lines.
    All,
    /// The last lines.
    Last(usize),
}

/// Until when lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The end of the files.
    End,
    /// The end of the lab.
    LabEnds,
}

/// The log of one process, read line by line.
#[derive(Debug)]
pub struct Log {
    /// The process.
    pub process: String,
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line without its end.
    rest: Vec<u8>,
}

/// The logs of one process, or of all.
pub fn logs(status: &Status, process: Option<&str>) -> Result<Vec<Log>, LabError> {
    let known = || status.processes.keys();
    let wanted: Vec<&String> = known().filter(|name| process.is_none_or(|p| p == *name)).collect();
    if let (Some(process), []) = (process, &wanted[..]) {
        let known: Vec<&str> = known().map(String::as_str).collect();
        let (name, known) = (process.to_owned(), known.join(", "));
        return Err(LabError::NotFound { what: "process", name, known });
    }
    let log = |process: &String| Log {
        process: process.clone(),
        path: status.logs.join(log_file(process)),
        file: None,
        rest: Vec::new(),
    };
    Ok(wanted.into_iter().map(log).collect())
}

/// Passes the lines of the logs to `print`: process and line. An error of `print` ends it.
pub fn read(
    mut logs: Vec<Log>,
    tail: Tail,
    until: Until,
    mut print: impl FnMut(&str, &str) -> io::Result<()>,
) -> Result<(), LabError> {
    let failed = |log: &Log, cause| LabError::File { path: log.path.clone(), cause };
    for log in &mut logs {
        let lines = log.lines().map_err(|cause| failed(log, cause))?;
        let skipped = match tail {
            Tail::All => 0,
            Tail::Last(count) => lines.len().saturating_sub(count),
        };
        for line in &lines[skipped..] {
            print(&log.process, line).map_err(LabError::Output)?;
        }
    }
    if until == Until::End {
        return Ok(());
    }
    loop {
        std::thread::sleep(POLL);
        // Lines that were written before the end are read after the check.
        let is_over = logs.iter().all(|log| !log.path.exists());
        for log in &mut logs {
            for line in log.lines().map_err(|cause| failed(log, cause))? {
                print(&log.process, &line).map_err(LabError::Output)?;
            }
        }
        if is_over {
            return Ok(());
        }
    }
}

impl Log {
    /// The complete lines since the last call. None if there is no file yet.
    fn lines(&mut self) -> io::Result<Vec<String>> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.rest)?;
        }
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        Ok(String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_complete_lines_are_read() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("a.log");
        let mut log =
            Log { process: "a".to_owned(), path: path.clone(), file: None, rest: Vec::new() };
        assert!(log.lines().expect("there is no file yet").is_empty());
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).expect("ours");
        for (text, wanted) in [("one\ntw", vec!["one"]), ("", vec![]), ("o\n\n", vec!["two", ""])] {
            file.write_all(text.as_bytes()).expect("writable");
            assert_eq!(log.lines().expect("readable"), wanted, "{text:?}");
        }
    }
}
