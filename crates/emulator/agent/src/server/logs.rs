//! Serves container logs, and follows them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, SeekFrom};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, BufReader};
use tokio::sync::mpsc;

use super::{Reply, RequestError};
use crate::pod::context::{ContainerView, PodView};
use crate::pod::log::LogReader;

/// The size of a read and of a frame.
const CHUNK: usize = 64 * 1024;

/// Frames that may wait for a slow client.
const QUEUE: usize = 64;

/// The parameters of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LogRequest {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Option<Timestamp>,
    limit: Option<u64>,
}

impl LogRequest {
    fn parse(query: &str, now: Timestamp) -> Result<Self, RequestError> {
        let mut request = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let number = || {
                let wrong =
                    || RequestError::bad_request(format!("{key}={value}: expected a number"));
                value.parse::<u64>().map_err(|_| wrong())
            };
            let switch = !matches!(&*value, "false" | "0");
            match &*key {
                "follow" => request.follow = switch,
                "previous" => request.previous = switch,
                "timestamps" => request.timestamps = switch,
                "tailLines" => request.tail = usize::try_from(number()?).ok(),
                "limitBytes" => request.limit = Some(number()?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).unwrap_or(i64::MAX);
                    let since = now.checked_sub(SignedDuration::from_secs(seconds));
                    request.since = Some(since.unwrap_or(Timestamp::MIN));
                }
                "sinceTime" => {
                    let wrong = |_| {
                        RequestError::bad_request(format!("sinceTime={value}: expected a time"))
                    };
                    request.since = Some(value.parse().map_err(wrong)?);
                }
                _ => {}
            }
        }
        Ok(request)
    }

    /// An entry as it is sent; `None` if it is too old.
    fn show(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let mut parts = entry.splitn(4, |byte| *byte == b' ');
        let (time, _stream, tag, text) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if let Some(since) = self.since {
            let at: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
            if at < since {
                return None;
            }
        }
        let mut shown = Vec::with_capacity(entry.len());
        if self.timestamps {
            shown.extend_from_slice(time);
            shown.push(b' ');
        }
        shown.extend_from_slice(text);
        if tag == b"F" {
            shown.push(b'\n');
        }
        Some(shown)
    }
}

pub(super) fn answer(
    pod: &PodView,
    container: &str,
    view: &ContainerView,
    query: Option<&str>,
) -> Result<Reply, RequestError> {
    let request = LogRequest::parse(query.unwrap_or_default(), Timestamp::now())?;
    let name = pod.pod.metadata.name.as_deref().unwrap_or_default();
    let earlier = request.previous && !view.restarting;
    let log = if earlier { &view.previous } else { &view.log };
    let log = log.clone().ok_or_else(|| {
        RequestError::bad_request(if request.previous {
            format!("previous terminated container {container:?} in pod {name:?} not found")
        } else {
            format!(
                "container {container:?} in pod {name:?} is waiting to start: ContainerCreating"
            )
        })
    })?;
    let (sender, receiver) = mpsc::channel::<Bytes>(QUEUE);
    tokio::spawn(async move {
        // The log ends when its Pod is deleted.
        let _ended =
            LogStream { request, sender, sent: 0, held: VecDeque::new(), ready: Vec::new() }
                .run(log)
                .await;
    });
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let bytes = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), receiver))
    });
    let mut reply = Response::new(StreamBody::new(frames).boxed_unsync());
    *reply.status_mut() = StatusCode::OK;
    let value = http::HeaderValue::from_static("text/plain");
    reply.headers_mut().insert(http::header::CONTENT_TYPE, value);
    Ok(reply)
}

/// Copies a log to a client.
struct LogStream {
    request: LogRequest,
    sender: mpsc::Sender<Bytes>,
    sent: u64,
    /// The last entries so far, for `tailLines`.
    held: VecDeque<Vec<u8>>,
    /// The next frame.
    ready: Vec<u8>,
}

#[derive(PartialEq, Eq)]
enum Next {
    More,
    Enough,
}

impl LogStream {
    async fn run(mut self, mut log: LogReader) -> io::Result<()> {
        let (mut number, file) = self.begin(&log).await?;
        let mut file = BufReader::with_capacity(CHUNK, file);
        let mut entry = Vec::new();
        let mut holding = self.request.tail.is_some();
        loop {
            // Read before the file, so that no entry is missed.
            let progress = *log.progress.borrow_and_update();
            while file.read_until(b'\n', &mut entry).await? > 0 && entry.ends_with(b"\n") {
                entry.pop();
                if self.take(&entry, holding).await == Next::Enough {
                    return Ok(());
                }
                entry.clear();
            }
            if number < progress.file {
                // A slow reader skips files that are already deleted.
                number = progress.first().max(number + 1);
                if let Ok(next) = File::open(log.file(number)).await {
                    file = BufReader::with_capacity(CHUNK, next);
                }
                entry.clear();
                continue;
            }
            if std::mem::take(&mut holding) {
                for shown in std::mem::take(&mut self.held) {
                    if self.send(shown).await == Next::Enough {
                        return Ok(());
                    }
                }
            }
            if self.flush().await == Next::Enough || progress.closed || !self.request.follow {
                return Ok(());
            }
            tokio::select! {
                changed = log.progress.changed() => if changed.is_err() {
                    // The writer has ended without closing the log: read once more.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    self.request.follow = false;
                },
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    /// The number of the first file to read, and the file at the position where reading starts.
    async fn begin(&self, log: &LogReader) -> io::Result<(u64, File)> {
        let progress = *log.progress.borrow();
        let (first, last) = (progress.first(), progress.file);
        if let (Some(count), None) = (self.request.tail, self.request.since) {
            let mut file = File::open(log.file(last)).await?;
            let found = seek_last(&mut file, count).await?;
            if found >= count || first == last {
                return Ok((last, file));
            }
            let mut file = File::open(log.file(first)).await?;
            seek_last(&mut file, count - found).await?;
            return Ok((first, file));
        }
        match File::open(log.file(first)).await {
            Ok(file) => Ok((first, file)),
            // The file was deleted meanwhile.
            Err(_) => Ok((last, File::open(log.file(last)).await?)),
        }
    }

    async fn take(&mut self, entry: &[u8], holding: bool) -> Next {
        let Some(shown) = self.request.show(entry) else { return Next::More };
        match self.request.tail {
            Some(count) if holding => {
                self.held.push_back(shown);
                if self.held.len() > count {
                    self.held.pop_front();
                }
                Next::More
            }
            _ => self.send(shown).await,
        }
    }

    async fn send(&mut self, mut shown: Vec<u8>) -> Next {
        let left = self.request.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.sent));
        shown.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.sent += shown.len() as u64;
        self.ready.extend_from_slice(&shown);
        let enough = self.request.limit.is_some_and(|limit| self.sent >= limit);
        if !enough && self.ready.len() < CHUNK {
            return Next::More;
        }
        let gone = self.flush().await == Next::Enough;
        if gone || enough { Next::Enough } else { Next::More }
    }

    /// Combines lines: one frame per line would cost more than the line.
    async fn flush(&mut self) -> Next {
        if self.ready.is_empty() {
            return Next::More;
        }
        let ready = Bytes::from(std::mem::take(&mut self.ready));
        if self.sender.send(ready).await.is_err() { Next::Enough } else { Next::More }
    }
}

/// Seeks to the last `count` entries without reading the whole file; returns how many there are.
async fn seek_last(file: &mut File, count: usize) -> io::Result<usize> {
    let mut begin = file.seek(SeekFrom::End(0)).await?;
    let mut ends = 0;
    let mut chunk = vec![0; CHUNK];
    while begin > 0 {
        let size = begin.min(CHUNK as u64);
        let part = &mut chunk[..usize::try_from(size).expect("a chunk is small")];
        begin = file.seek(SeekFrom::Start(begin - size)).await?;
        file.read_exact(part).await?;
        for (n, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            ends += 1;
            // The last newline ends the last entry; the one before starts it.
            if ends > count {
                file.seek(SeekFrom::Start(begin + n as u64 + 1)).await?;
                return Ok(count);
            }
        }
    }
    file.seek(SeekFrom::Start(0)).await?;
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use tokio::sync::watch;

    use super::*;
    use crate::pod::log::Progress;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    async fn shown(query: &str) -> String {
        let mut text = String::new();
        for (second, line) in ["a", "b b", "c"].into_iter().enumerate() {
            let time = at(i64::try_from(second).unwrap());
            writeln!(text, "{time:.9} stdout F {line}").unwrap();
        }
        writeln!(text, "{:.9} stdout P open", at(3)).unwrap();
        // In two files, as after a rotation.
        let directory = tempfile::tempdir().unwrap();
        let (first, last) = text.split_at(text.match_indices('\n').nth(1).unwrap().0 + 1);
        let progress = Progress { file: 7, closed: true, ..Progress::default() };
        let (_writer, progress) = watch::channel(progress);
        let log = LogReader::new(&directory.path().join("0.log"), progress);
        std::fs::write(log.file(6), first).unwrap();
        std::fs::write(log.file(7), last).unwrap();
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let request = LogRequest::parse(query, at(4)).unwrap();
        LogStream { request, sender, sent: 0, held: VecDeque::new(), ready: Vec::new() }
            .run(log)
            .await
            .unwrap();
        let mut out = Vec::new();
        while let Some(bytes) = receiver.recv().await {
            out.extend_from_slice(&bytes);
        }
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn the_requested_part_of_the_log_is_returned() {
        assert_eq!(shown("").await, "a\nb b\nc\nopen");
        assert_eq!(shown("tailLines=2").await, "c\nopen");
        assert_eq!(shown("tailLines=3").await, "b b\nc\nopen");
        assert_eq!(shown("tailLines=9").await, "a\nb b\nc\nopen");
        assert_eq!(shown("tailLines=0").await, "");
        assert_eq!(shown("sinceSeconds=3").await, "b b\nc\nopen");
        assert_eq!(shown("sinceTime=2023-11-14T22:13:22Z").await, "c\nopen");
        assert_eq!(shown("limitBytes=4&follow=true").await, "a\nb ");
        assert_eq!(
            shown("tailLines=2&timestamps=true").await,
            "2023-11-14T22:13:22.000000000Z c\n2023-11-14T22:13:23.000000000Z open"
        );
    }

    #[tokio::test]
    async fn seek_last_finds_the_last_entries() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..20_000).map(|n| format!("entry {n}\n")).collect();
        std::fs::write(file.path(), &text).unwrap();
        let mut file = File::open(file.path()).await.unwrap();
        for count in [0, 1, 5, 15_000, 20_000, 30_000] {
            let found = seek_last(&mut file, count).await.unwrap();
            assert_eq!(found, count.min(20_000));
            let mut rest = String::new();
            file.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest.lines().count(), count.min(20_000));
            assert!(text.ends_with(&rest));
        }
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        assert!(LogRequest::parse("tailLines=x", at(0)).is_err());
        assert!(LogRequest::parse("sinceTime=yesterday", at(0)).is_err());
        let request = LogRequest::parse("follow=true&previous=false", at(0)).unwrap();
        assert!(request.follow && !request.previous);
    }
}
