//! Long-lived TCP connections: opened once, some of them busy and some idle, and what became of
//! them.
//!
//! A busy one sends a line now and then and waits for the answer, an idle one is silent until the
//! end and then sends its only line: whoever forgot it answers with a reset.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause of a busy one.
const PAUSE: Duration = Duration::from_millis(100);

/// What to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// A server that answers a line with a line.
    pub target: String,
    /// How many; every other one is idle.
    pub flows: usize,
    /// For how long.
    pub seconds: u64,
}

/// What became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// How many answered to the end.
    pub kept: usize,
    /// Lines that were answered.
    pub answers: u64,
    /// What went wrong with the others.
    pub lost: Vec<String>,
}

/// Opens them all, tells so, and holds them.
pub async fn hold(job: &Hold, opened: impl FnOnce(usize)) -> Held {
    let end = Instant::now() + Duration::from_secs(job.seconds);
    let mut streams = Vec::new();
    let mut held = Held::default();
    for n in 0..job.flows {
        match timeout(PATIENCE, TcpStream::connect(&job.target)).await {
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

/// How many answers there were.
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
    match timeout(PATIENCE, stream.read_line(&mut line)).await {
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
    async fn one_that_is_cut_is_told_from_those_that_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for n in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    // The first busy one is cut after its first answer.
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
