//! A container's log: what it wrote, a line at a time, with the time and the stream.
//!
//! The form is the one that container runtimes write: `TIME STREAM TAG TEXT`, where the tag `P`
//! says that the line goes on. Files are not rotated: they go with their pod.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, watch};

/// Longer lines are written in parts.
const LONGEST: usize = 16 * 1024;

/// How much of a log there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// So many bytes, and there may be more.
    Open(u64),
    /// Nothing will follow.
    Closed,
}

/// Where a log is, and how far it is.
#[derive(Clone, Debug)]
pub(crate) struct LogReader {
    pub(crate) path: PathBuf,
    pub(crate) progress: watch::Receiver<Progress>,
}

/// Writes a log. Clones write to the same one.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    file: Arc<Mutex<File>>,
    progress: Arc<watch::Sender<Progress>>,
}

/// Which of a program's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// A new log.
pub(crate) async fn create(path: &Path) -> io::Result<(LogWriter, LogReader)> {
    let file = Arc::new(Mutex::new(File::create(path).await?));
    let (sender, progress) = watch::channel(Progress::Open(0));
    let reader = LogReader { path: path.to_owned(), progress };
    Ok((LogWriter { file, progress: Arc::new(sender) }, reader))
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
        // A full disk must not stop the program.
        let written = file.write_all(bytes).await;
        if written.is_ok() && file.flush().await.is_ok() {
            self.progress.send_modify(|progress| {
                if let Progress::Open(length) = progress {
                    *length += bytes.len() as u64;
                }
            });
        }
    }

    /// Says that nothing will follow.
    pub(crate) fn close(&self) {
        self.progress.send_replace(Progress::Closed);
    }
}

/// Takes whole lines, and parts of those that are too long, out of what was read.
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
    fn lines_are_cut_where_they_end_and_where_they_are_too_long() {
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
}
