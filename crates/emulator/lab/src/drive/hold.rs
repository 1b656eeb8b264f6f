//! Long-lived TCP connections, half of them busy and half idle.
//!
//! A busy one sends a line every 100 ms and waits for the answer. An idle one sends its only line at
//! the end: if conntrack or the server lost it, the answer is a reset.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause of a busy connection between two lines.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Address of a server that answers each line with a line.
    pub target: String,
    /// Number of connections; every second one is idle.
    pub flows: usize,
    /// Duration in seconds.
    pub seconds: u64,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Connections that worked to the end.
    pub kept: usize,
    /// Answered lines.
    pub answers: u64,
    /// Errors of the others.
    pub lost: Vec<String>,
}

/// Opens the connections, calls `opened` with their number, and holds them.
pub async fn hold(job: &Hold, opened: impl FnOnce(usize)) -> Held {
    let end = Instant::now() + Duration::from_secs(job.seconds);
    let mut streams = Vec::new();
    let mut held = Held::default();
    for n in 0..job.flows {
        match timeout(ANSWER_TIMEOUT, TcpStream::connect(&job.target)).await {
            Ok(Ok(stream)) => streams.push((n, stream)),
            Ok(Err(error)) => held.lost.push(format!("{n}: connect: {error}")),
            Err(_) => held.lost.push(format!("{n}: connect: no answer")),
        }
    }
    opened(streams.len());
    let mut tasks = tokio::task::JoinSet::new();
    for (n, stream) in streams {
        tasks.spawn(async move { (n, keep(stream, n % 2 == 1, end).await) });
    }
    while let Some(done) = tasks.join_next().await {
        match done.expect("a task does not panic") {
            (_, Ok(answers)) => {
                held.kept += 1;
                held.answers += answers;
            }
            (n, Err(error)) => held.lost.push(format!("{n}: {error}")),
        }
    }
    held
}

/// Returns the number of answers.
async fn keep(stream: TcpStream, idle: bool, end: Instant) -> io::Result<u64> {
    let begun = Instant::now();
    let mut stream = BufReader::new(stream);
    let mut answers = 0;
    if idle {
        sleep_until(end.into()).await;
    }
    loop {
        ask(&mut stream).await.map_err(|error| {
            let after = begun.elapsed().as_secs_f64();
            io::Error::new(error.kind(), format!("after {after:.1} s: {error}"))
        })?;
        answers += 1;
        if Instant::now() >= end {
            return Ok(answers);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    stream.write_all(b"hostname\n").await?;
    let mut line = String::new();
    match timeout(ANSWER_TIMEOUT, stream.read_line(&mut line)).await {
        Ok(Ok(0)) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the server")),
        Ok(read) => read.map(drop),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_closed_connection_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for n in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    // The first busy connection is closed after its first answer.
                    while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
                        let _ = stream.write_all(b"pod\n").await;
                        if n == 0 {
                            return;
                        }
                        line.clear();
                    }
                });
            }
        });
        let mut open = 0;
        let job = Hold { target, flows: 4, seconds: 1 };
        let held = hold(&job, |count| open = count).await;
        assert_eq!((open, held.kept), (4, 3), "{held:?}");
        assert_eq!(held.lost.len(), 1);
        assert!(held.lost[0].starts_with("0: after"), "{held:?}");
        assert!(held.answers > 3, "two idle ones answer once, the busy one often: {held:?}");
    }
}
