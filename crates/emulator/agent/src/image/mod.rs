//! The built-in images: programs that this binary runs in containers.
//!
//! ```text
//!   echo       nearhop/echo: HTTP, TCP and UDP servers that report their identity
//!   agnhost    common subcommands of the Kubernetes test image:
//!              netexec, serve-hostname, connect, pause
//!   pause      waits for a signal
//! ```
//!
//! Not implemented: TLS, SCTP, uploads, and the other subcommands of agnhost.

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

/// Runs an image with its arguments.
#[must_use]
pub fn main(image: &str, arguments: &[String]) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let played = match runtime {
        Ok(runtime) => runtime.block_on(play(image, arguments)),
        Err(error) => Err(format!("cannot start threads: {error}")),
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
            "unknown subcommand {other:?}: use netexec, serve-hostname, connect or pause"
        )),
        (other, _) => Err(format!("unknown built-in image {other:?}")),
    }
}

/// Waits for a signal, and exits with the image's exit code.
async fn pause(interrupted: u8, terminated: u8) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("cannot wait for signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        _ = interrupt.recv() => Ok(interrupted),
        _ = terminate.recv() => Ok(terminated),
    }
}

/// Writes a line to the log.
fn print_line(line: &str) {
    let _unread = writeln!(std::io::stderr(), "{line}");
}
