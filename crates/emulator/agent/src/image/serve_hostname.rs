//! `agnhost serve-hostname`: returns the hostname over TCP, UDP or HTTP.

use std::sync::Weak;
use std::time::Duration;

use nearhop_runtime::server::accept;
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::flags::Flags;
use super::print_line;
use super::serve::{self, HttpReply, hostname, http, listen, receive};

/// How long it keeps serving after SIGTERM.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(60);

pub(super) async fn run(mut flags: Flags) -> Result<u8, String> {
    let (tcp, udp) = (flags.switch("tcp").unwrap_or(false), flags.switch("udp").unwrap_or(false));
    // Agnhost requires `--http=false` with the others.
    let web = flags.switch("http").unwrap_or(!tcp && !udp);
    let close = flags.switch("close").unwrap_or(false);
    let port = flags.number("port", 9376)?;
    let port = u16::try_from(port).map_err(|_| format!("--port {port} is not a port number"))?;
    flags.rest()?;
    let name = hostname();
    if tcp {
        tokio::spawn(serve_tcp(listen(port)?, name.clone()));
    }
    if udp {
        let name = name.clone();
        tokio::spawn(serve::udp(receive(port)?, move |_, _| Some(name.clone())));
    }
    if web && !tcp {
        let answer = move |_| {
            let mut answer = HttpReply::ok(name.clone());
            if close {
                answer.headers.push(("connection", "close".to_owned()));
            }
            std::future::ready(answer)
        };
        tokio::spawn(http(listen(port)?, Weak::new(), answer));
    }
    let failed = |error: std::io::Error| format!("wait for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    print_line(&format!("Serving on port {port}."));
    terminate.recv().await;
    print_line("Shutting down after receiving signal: terminated.");
    sleep(SHUTDOWN_DELAY).await;
    Ok(0)
}

async fn serve_tcp(listener: tokio::net::TcpListener, name: String) {
    loop {
        let (mut stream, _) = accept(&listener).await;
        let name = name.clone();
        tokio::spawn(async move {
            let _gone = stream.write_all(name.as_bytes()).await;
            let _gone = stream.shutdown().await;
        });
    }
}
