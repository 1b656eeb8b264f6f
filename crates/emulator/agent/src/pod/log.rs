//! A container's log in the CRI format: `TIME STREAM TAG TEXT`, where the tag `P` marks a partial
//! line.
//!
//! A log is a sequence of files, `0.log.0`, `0.log.1`, ...: when a file is full, the next one
//! starts and the one before the last is deleted. So a log has at most two files, and readers
//! continue by number.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, watch};

/// Longer lines are split.
const LONGEST: usize = 16 * 1024;

/// The size of a file, as the kubelet's `containerLogMaxSize`.
const FULL: u64 = 10 * 1024 * 1024;

/// The write position of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of the current file.
    pub(crate) file: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// No more entries will follow.
    pub(crate) closed: bool,
}

impl Progress {
    /// The number of the oldest remaining file.
    pub(crate) fn first(self) -> u64 {
        self.file.saturating_sub(1)
    }
}

/// A log and its write position.
#[derive(Clone, Debug)]
pub(crate) struct LogReader {
    path: PathBuf,
    pub(crate) progress: watch::Receiver<Progress>,
}

impl LogReader {
    pub(crate) fn new(path: &Path, progress: watch::Receiver<Progress>) -> Self {
        Self { path: path.to_owned(), progress }
    }

    /// The path of a file.
    pub(crate) fn file(&self, number: u64) -> PathBuf {
        file(&self.path, number)
    }
}

fn file(log: &Path, number: u64) -> PathBuf {
    let mut name = OsString::from(log);
    name.push(format!(".{number}"));
    name.into()
}

/// Writes a log. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    path: Arc<Path>,
    file: Arc<Mutex<File>>,
    progress: Arc<watch::Sender<Progress>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

pub(crate) async fn create(path: &Path) -> io::Result<(LogWriter, LogReader)> {
    let first = Arc::new(Mutex::new(File::create(file(path, 0)).await?));
    let (sender, progress) = watch::channel(Progress::default());
    let reader = LogReader::new(path, progress);
    Ok((LogWriter { path: path.into(), file: first, progress: Arc::new(sender) }, reader))
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let Some((parent, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
    let prefix = format!("{}.", name.to_string_lossy());
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl LogWriter {
    /// Copies a stream to its end.
    pub(crate) async fn copy(&self, stream: Stream, mut from: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; LONGEST];
        let mut line = Vec::new();
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                break;
            }
            let mut out = Vec::new();
            cut(&mut line, &buffer[..read], stream, Timestamp::now(), &mut out);
            self.write(&out).await;
        }
        if !line.is_empty() {
            let mut out = Vec::new();
            entry(&mut out, Timestamp::now(), stream, b'P', &line);
            self.write(&out).await;
        }
    }

    async fn write(&self, bytes: &[u8]) {
        let mut file = self.file.lock().await;
        let Progress { file: number, length, .. } = *self.progress.borrow();
        if length > 0 && length + bytes.len() as u64 > FULL {
            self.turn_over(&mut file, number + 1).await;
        }
        // A full disk does not stop the program.
        let written = file.write_all(bytes).await;
        if written.is_ok() && file.flush().await.is_ok() {
            self.progress.send_modify(|progress| progress.length += bytes.len() as u64);
        }
    }

    /// Starts the next file. If that fails, the current one grows.
    async fn turn_over(&self, present: &mut File, number: u64) {
        let Ok(next) = File::create(file(&self.path, number)).await else { return };
        *present = next;
        self.progress.send_modify(|progress| {
            *progress = Progress { file: number, length: 0, ..*progress };
        });
        if let Some(old) = number.checked_sub(2) {
            let _not_there = tokio::fs::remove_file(file(&self.path, old)).await;
        }
    }

    /// Marks the log as complete.
    pub(crate) fn close(&self) {
        self.progress.send_modify(|progress| progress.closed = true);
    }
}

/// Extracts whole lines, and parts of lines that are too long.
fn cut(line: &mut Vec<u8>, read: &[u8], stream: Stream, now: Timestamp, out: &mut Vec<u8>) {
    for piece in read.split_inclusive(|byte| *byte == b'\n') {
        line.extend_from_slice(piece);
        if line.last() == Some(&b'\n') {
            line.pop();
            entry(out, now, stream, b'F', line);
            line.clear();
        } else if line.len() >= LONGEST {
            entry(out, now, stream, b'P', line);
            line.clear();
        }
    }
}

fn entry(out: &mut Vec<u8>, now: Timestamp, stream: Stream, tag: u8, text: &[u8]) {
    let stream = if stream == Stream::Out { "stdout" } else { "stderr" };
    out.extend_from_slice(format!("{now:.9} {stream} ").as_bytes());
    out.extend_from_slice(&[tag, b' ']);
    out.extend_from_slice(text);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_at_newlines_and_at_the_size_limit() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let (mut line, mut out) = (Vec::new(), Vec::new());
        cut(&mut line, b"one\ntwo", Stream::Out, now, &mut out);
        cut(&mut line, b" more\n", Stream::Err, now, &mut out);
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert_eq!(
            text,
            "2023-11-14T22:13:20.000000000Z stdout F one\n\
             2023-11-14T22:13:20.000000000Z stderr F two more\n"
        );
        cut(&mut line, &[b'x'; LONGEST], Stream::Out, now, &mut out);
        cut(&mut line, b"y\n", Stream::Out, now, &mut out);
        let text = String::from_utf8(out).unwrap();
        let tags: Vec<&str> = text.lines().map(|it| it.split(' ').nth(2).unwrap()).collect();
        assert_eq!(tags, ["P", "F"]);
    }

    #[tokio::test]
    async fn a_log_has_at_most_two_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let (writer, reader) = create(&path).await.unwrap();
        // Another run's log is not affected.
        let (_other, _) = create(&directory.path().join("10.log")).await.unwrap();
        let much = vec![b"0123456789abcde\n".repeat(1000); 3000].concat();
        writer.copy(Stream::Out, much.as_slice()).await;
        writer.close();
        let progress = *reader.progress.borrow();
        assert!(progress.closed && progress.file > 2, "{progress:?}");
        let sizes = || {
            let files = std::fs::read_dir(directory.path()).unwrap();
            let files = files.map(|it| it.unwrap()).filter(|it| it.file_name() != "10.log.0");
            files.map(|it| it.metadata().unwrap().len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes().len(), 2);
        assert!(sizes().iter().all(|size| *size <= FULL), "{:?}", sizes());
        assert!(reader.file(progress.first()).exists() && reader.file(progress.file).exists());
        remove(&path).unwrap();
        assert_eq!(sizes(), [0; 0]);
    }
}
