//! The logs of a lab's processes: one file each, to which every new start of a process appends. The
//! lab moves the earlier lines of a large log to a second file.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::control::Status;
use crate::log_limit::earlier;
use crate::spec::log_file;

/// The pause between two looks at the files.
const POLL: Duration = Duration::from_millis(100);

/// How much is read at once.
const BLOCK: usize = 64 * 1024;

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

/// Receives process and line.
type Print<'a> = &'a mut dyn FnMut(&str, &str) -> io::Result<()>;

/// The log of one process, read line by line.
#[derive(Debug)]
pub struct Log {
    /// The process.
    pub process: String,
    path: PathBuf,
    file: Option<File>,
    /// How much of the file has been read.
    position: u64,
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
    let path = |process: &str| status.logs.join(log_file(process));
    Ok(wanted.into_iter().map(|process| Log::new(process, path(process))).collect())
}

/// Passes the lines of the logs to `print`: process and line. An error of `print` ends it.
pub fn read(
    mut logs: Vec<Log>,
    tail: Tail,
    until: Until,
    mut print: impl FnMut(&str, &str) -> io::Result<()>,
) -> Result<(), LabError> {
    for log in &mut logs {
        log.begin(tail, &mut print)?;
        log.advance(&mut print)?;
    }
    let mut is_over = until == Until::End;
    while !is_over {
        std::thread::sleep(POLL);
        // Lines that were written before the end are read after the check.
        is_over = logs.iter().all(|log| !log.path.exists());
        for log in &mut logs {
            log.advance(&mut print)?;
        }
    }
    logs.iter_mut().try_for_each(|log| log.finish(&mut print))
}

impl Log {
    fn new(process: &str, path: PathBuf) -> Self {
        Self { process: process.to_owned(), path, file: None, position: 0, rest: Vec::new() }
    }

    /// Skips what is not wanted, and passes the earlier lines of the second file.
    fn begin(&mut self, tail: Tail, print: Print<'_>) -> Result<(), LabError> {
        let failed = |cause| LabError::File { path: self.path.clone(), cause };
        let mut older = open(&earlier(&self.path))?;
        let file = open(&self.path)?;
        if let Tail::Last(count) = tail {
            let (mut start, mut found) = (0, 0);
            if let Some(file) = &file {
                (start, found) = start_of_last(file, count).map_err(failed)?;
            }
            if let Some(older) = &mut older {
                let (from, _) = start_of_last(older, count - found).map_err(failed)?;
                older.seek(SeekFrom::Start(from)).map_err(failed)?;
            }
            self.position = start;
        }
        self.file = file;
        match older {
            Some(mut older) => self.drain(&mut older, print).map(drop),
            None => Ok(()),
        }
    }

    /// Passes the complete lines since the last call.
    fn advance(&mut self, print: Print<'_>) -> Result<(), LabError> {
        if self.file.is_none() {
            self.file = open(&self.path)?;
        }
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let failed = |cause| LabError::File { path: self.path.clone(), cause };
        if file.metadata().map_err(failed)?.len() < self.position {
            // What was not read yet has moved to the second file.
            if let Some(mut older) = open(&earlier(&self.path))? {
                older.seek(SeekFrom::Start(self.position)).map_err(failed)?;
                self.drain(&mut older, print)?;
            }
            self.position = 0;
        }
        file.seek(SeekFrom::Start(self.position))
            .map_err(|cause| LabError::File { path: self.path.clone(), cause })?;
        self.position += self.drain(&mut file, print)?;
        self.file = Some(file);
        Ok(())
    }

    /// Passes the last line, which has no end.
    fn finish(&mut self, print: Print<'_>) -> Result<(), LabError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.rest);
        print(&self.process, &String::from_utf8_lossy(&line)).map_err(LabError::Output)
    }

    /// Passes the complete lines up to the end of a file. Returns the number of bytes.
    fn drain(&mut self, file: &mut File, print: Print<'_>) -> Result<u64, LabError> {
        let mut block = vec![0; BLOCK];
        let mut total = 0;
        loop {
            let count = file
                .read(&mut block)
                .map_err(|cause| LabError::File { path: self.path.clone(), cause })?;
            if count == 0 {
                return Ok(total);
            }
            total += count as u64;
            self.rest.extend_from_slice(&block[..count]);
            let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = self.rest.drain(..end).collect();
            for line in String::from_utf8_lossy(&lines).lines() {
                print(&self.process, line).map_err(LabError::Output)?;
            }
        }
    }
}

/// None if there is no such file.
fn open(path: &Path) -> Result<Option<File>, LabError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(LabError::File { path: path.to_owned(), cause }),
    }
}

/// Where the last lines of a file begin, and how many there are. Reads from the end.
fn start_of_last(file: &File, count: usize) -> io::Result<(u64, usize)> {
    let end = file.metadata()?.len();
    if count == 0 || end == 0 {
        return Ok((end, 0));
    }
    let mut found = 0;
    let mut block = vec![0; BLOCK];
    let mut at = end;
    while at > 0 {
        let size = at.min(BLOCK as u64);
        at -= size;
        let part = &mut block[..size as usize];
        file.read_exact_at(part, at)?;
        for (offset, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let next = at + offset as u64 + 1;
            // No line begins at the end of the file.
            if next < end {
                found += 1;
                if found == count {
                    return Ok((next, found));
                }
            }
        }
    }
    Ok((0, found + 1))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    /// The lines that a step passes.
    fn lines_of(step: impl FnOnce(Print<'_>) -> Result<(), LabError>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut print = |_: &str, line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        step(&mut print).expect("readable");
        lines
    }

    #[test]
    fn complete_lines_are_followed_and_the_rest_comes_at_the_end() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("a.log");
        let mut log = Log::new("a", path.clone());
        assert!(lines_of(|print| log.advance(print)).is_empty(), "there is no file yet");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).expect("ours");
        for (text, wanted) in
            [("one\ntw", vec!["one"]), ("", vec![]), ("o\n\nend", vec!["two", ""])]
        {
            file.write_all(text.as_bytes()).expect("writable");
            assert_eq!(lines_of(|print| log.advance(print)), wanted, "{text:?}");
        }
        assert_eq!(lines_of(|print| log.finish(print)), ["end"]);
        assert!(lines_of(|print| log.finish(print)).is_empty(), "only once");
    }

    #[test]
    fn the_tail_is_read_from_the_end_and_over_both_files() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("a.log");
        let long = "x".repeat(BLOCK + 7);
        fs::write(earlier(&path), format!("a\n{long}\n")).expect("writable");
        for (current, count, wanted) in [
            ("b\nc\n", Tail::Last(0), vec![]),
            ("b\nc\n", Tail::Last(1), vec!["c"]),
            ("b\nc", Tail::Last(1), vec!["c"]),
            ("b\nc\n", Tail::Last(2), vec!["b", "c"]),
            ("b\nc\n", Tail::Last(3), vec![&*long, "b", "c"]),
            ("", Tail::Last(1), vec![&*long]),
            ("b\n", Tail::Last(9), vec!["a", &*long, "b"]),
            ("b\nc", Tail::All, vec!["a", &*long, "b", "c"]),
        ] {
            fs::write(&path, current).expect("writable");
            let log = Log::new("a", path.clone());
            let found = lines_of(|print| read(vec![log], count, Until::End, print));
            assert_eq!(found, wanted, "{count:?} of {current:?}");
        }
    }

    #[test]
    fn no_line_is_lost_when_a_followed_log_is_cut() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("a.log");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).expect("ours");
        let mut log = Log::new("a", path.clone());
        file.write_all(b"one\ntw").expect("writable");
        assert_eq!(lines_of(|print| log.advance(print)), ["one"]);
        file.write_all(b"o\nthr").expect("writable");
        fs::copy(&path, earlier(&path)).expect("ours");
        file.set_len(0).expect("ours");
        file.write_all(b"ee\n").expect("writable");
        assert_eq!(lines_of(|print| log.advance(print)), ["two", "three"]);
    }
}
