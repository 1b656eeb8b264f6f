//! `nearhop/echo`: HTTP, TCP and UDP servers that report their identity and the client's address.
//!
//! ```text
//!   --http-port=8080   any path: {"pod":..,"node":..,"zone":..,"client":"ADDRESS:PORT"}
//!                      /hostname: the pod's name
//!   --tcp-port=8081    the same for each line
//!   --udp-port=8081    the same for each packet
//!   --drain=5s         after SIGTERM the servers run for this long, and then
//!                      until all connections are closed
//! ```
//!
//! A port of -1 disables a server. The agent sets NEARHOP_POD, NEARHOP_NODE and NEARHOP_ZONE.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nearhop_runtime::server::accept;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::flags::{Flags, duration};
use super::print_line;
use super::serve::{self, HttpReply, HttpRequest, hostname, http, listen, receive};

/// How often open connections are checked during shutdown.
const GLANCE: Duration = Duration::from_millis(50);

struct Identity {
    pod: String,
    node: String,
    zone: String,
}

impl Identity {
    fn read() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let pod = Some(variable("NEARHOP_POD")).filter(|it| !it.is_empty());
        Self {
            pod: pod.unwrap_or_else(hostname),
            node: variable("NEARHOP_NODE"),
            zone: variable("NEARHOP_ZONE"),
        }
    }

    fn answer(&self, client: SocketAddr) -> String {
        let Self { pod, node, zone } = self;
        json!({ "pod": pod, "node": node, "zone": zone, "client": client.to_string() }).to_string()
    }
}

pub(super) async fn run(mut flags: Flags) -> Result<u8, String> {
    let mut port = |name: &str, usual| -> Result<Option<u16>, String> {
        let number = flags.number(name, usual)?;
        Ok(u16::try_from(number).ok())
    };
    let (web, tcp, udp) =
        (port("http-port", 8080)?, port("tcp-port", 8081)?, port("udp-port", 8081)?);
    let drain = flags.text("drain").map_or(Ok(Duration::from_secs(5)), |text| duration(&text))?;
    flags.rest()?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let (identity, open) = (Arc::new(Identity::read()), Arc::new(()));
    if let Some(port) = web {
        let identity = Arc::clone(&identity);
        let answer = move |ask: HttpRequest| std::future::ready(respond(&identity, &ask));
        tokio::spawn(http(listen(port)?, Arc::downgrade(&open), answer));
    }
    if let Some(port) = tcp {
        tokio::spawn(serve_tcp(listen(port)?, Arc::clone(&identity), Arc::downgrade(&open)));
    }
    if let Some(port) = udp {
        tokio::spawn(serve::udp(receive(port)?, move |_, client| Some(identity.answer(client))));
    }
    let at = |port: Option<u16>| port.map_or_else(|| "no port".to_owned(), |port| port.to_string());
    print_line(&format!("serving HTTP on {}, TCP on {}, UDP on {}", at(web), at(tcp), at(udp)));
    terminate.recv().await;
    print_line(&format!(
        "TERM: serving for {} s more, and until all connections are closed",
        drain.as_secs()
    ));
    sleep(drain).await;
    while Arc::strong_count(&open) > 1 {
        sleep(GLANCE).await;
    }
    Ok(0)
}

fn respond(identity: &Identity, ask: &HttpRequest) -> HttpReply {
    if ask.path.eq_ignore_ascii_case("/hostname") {
        return HttpReply::ok(identity.pod.clone());
    }
    let mut answer = HttpReply::ok(format!("{}\n", identity.answer(ask.client)));
    answer.headers.push(("content-type", "application/json".to_owned()));
    answer
}

async fn serve_tcp(listener: TcpListener, identity: Arc<Identity>, open: Weak<()>) {
    loop {
        let (stream, client) = accept(&listener).await;
        let (identity, held) = (Arc::clone(&identity), open.upgrade());
        tokio::spawn(async move {
            let _open = held;
            let _gone = serve_stream(stream, &format!("{}\n", identity.answer(client))).await;
        });
    }
}

async fn serve_stream(stream: TcpStream, answer: &str) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).await? > 0 {
        writer.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}
