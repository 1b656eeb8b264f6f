//! The built-in images: programs that this binary plays in containers.
//!
//! ```text
//!   echo       nearhop/echo: HTTP, TCP and UDP servers that say who answered whom
//!   agnhost    the subcommands of Kubernetes' test image that its tests and walk-throughs use:
//!              netexec, serve-hostname, connect, pause
//!   pause      does nothing
//! ```
//!
//! Deliberately not here: TLS, SCTP, uploads, and agnhost's other thirty subcommands.

mod connect;
mod echo;
mod flags;
mod netexec;
mod serve;
mod serve_hostname;

use std::io::Write as _;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use self::flags::Flags;

/// Plays an image with its arguments, to its end.
#[must_use]
pub fn main(image: &str, arguments: &[String]) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let played = match runtime {
        Ok(runtime) => runtime.block_on(play(image, arguments)),
        Err(error) => Err(format!("start threads: {error}")),
    };
    played.map_or_else(
        |why| {
            let _unread = writeln!(std::io::stderr(), "{image}: {why}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

async fn play(image: &str, arguments: &[String]) -> Result<u8, String> {
    let subcommand = arguments.first().map_or("pause", String::as_str);
    let flags = || Flags::new(arguments.get(1..).unwrap_or_default());
    match (image, subcommand) {
        ("echo", _) => echo::run(Flags::new(arguments)).await,
        ("pause", _) => pause(0, 0).await,
        ("agnhost", "pause") => pause(1, 2).await,
        ("agnhost", "netexec") => netexec::run(flags()).await,
        ("agnhost", "serve-hostname") => serve_hostname::run(flags()).await,
        ("agnhost", "connect") => Ok(connect::run(flags()).await),
        ("agnhost", other) => Err(format!(
            "subcommand {other:?} is not built in: there are netexec, serve-hostname, connect, pause"
        )),
        (other, _) => Err(format!("there is no built-in image {other:?}")),
    }
}

/// Waits for a signal, and exits as the image that it stands for.
async fn pause(interrupted: u8, terminated: u8) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("wait for signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        _ = interrupt.recv() => Ok(interrupted),
        _ = terminate.recv() => Ok(terminated),
    }
}

/// A line for the log.
fn print_line(line: &str) {
    let _unread = writeln!(std::io::stderr(), "{line}");
}
