//! `agnhost netexec`: an HTTP server that reports about itself and runs commands, and a UDP server
//! with a few commands.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::net::{TcpStream, lookup_host};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::flags::{Flags, duration};
use super::print_line;
use super::serve::{HttpReply, HttpRequest, exchange, hostname, http, listen, receive, udp};

/// The timeout of `/dial`.
const DIAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Server {
    port: u16,
    /// The path that replaces every request's path.
    instead: Option<String>,
    ending: AtomicBool,
}

pub(super) async fn run(mut flags: Flags) -> Result<u8, String> {
    let web = flags.number("http-port", 8080)?;
    let web = u16::try_from(web).map_err(|_| format!("--http-port {web} is not a port number"))?;
    let udp_port = flags.number("udp-port", 8081)?;
    let delay = flags.number("delay-shutdown", 0)?;
    let instead = flags.text("http-override").filter(|it| !it.is_empty());
    for ignored in ["udp-listen-addresses", "sctp-port"] {
        flags.text(ignored);
    }
    flags.rest()?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let server = Arc::new(Server { port: web, instead, ending: AtomicBool::new(false) });
    if let Ok(port) = u16::try_from(udp_port) {
        let answer = move |text: &str, client| udp_response(text, client, port, &hostname());
        tokio::spawn(udp(receive(port)?, answer));
        print_line(&format!("Started UDP server on port {port}"));
    }
    let answering = Arc::clone(&server);
    let answer = move |ask: HttpRequest| {
        let server = Arc::clone(&answering);
        async move { server.answer(ask).await }
    };
    tokio::spawn(http(listen(web)?, Weak::new(), answer));
    print_line(&format!("Started HTTP server on port {web}"));
    terminate.recv().await;
    server.ending.store(true, Ordering::Relaxed);
    if let Some(delay) = u64::try_from(delay).ok().filter(|delay| *delay > 0) {
        print_line(&format!("Sleeping {delay} seconds before terminating..."));
        sleep(Duration::from_secs(delay)).await;
    }
    Ok(0)
}

impl Server {
    async fn answer(&self, ask: HttpRequest) -> HttpReply {
        let ask = match &self.instead {
            Some(target) => HttpRequest::new(target, HeaderMap::new(), ask.client),
            None => ask,
        };
        match ask.path.as_str() {
            "/clientip" => HttpReply::ok(ask.client.to_string()),
            "/serverport" => HttpReply::ok(self.port.to_string()),
            "/header" => headers(&ask),
            "/dial" => dial(&ask).await,
            "/echo" => echo(&ask),
            "/exit" => exit(&ask).await,
            "/healthz" => HttpReply::ok(""),
            "/readyz" if self.ending.load(Ordering::Relaxed) => {
                HttpReply::new(503, "shutting down")
            }
            "/readyz" => HttpReply::ok("ok"),
            "/hostname" | "/hostName" => HttpReply::ok(hostname()),
            "/redirect" => redirect(&ask),
            "/shell" => shell(&ask).await,
            "/shutdown" => std::process::exit(0),
            _ => HttpReply::ok(format!("NOW: {}", Timestamp::now())),
        }
    }
}

fn code(ask: &HttpRequest) -> Result<Option<u16>, HttpReply> {
    let text = ask.get("code");
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("argument 'code' must be an integer or empty, got {text:?}\n");
    text.parse().map(Some).map_err(|_| HttpReply::ok(wrong()))
}

fn echo(ask: &HttpRequest) -> HttpReply {
    match code(ask) {
        Ok(code) => HttpReply::new(code.unwrap_or(200), ask.get("msg")),
        Err(wrong) => wrong,
    }
}

fn redirect(ask: &HttpRequest) -> HttpReply {
    match code(ask) {
        Ok(code) => {
            let mut answer = HttpReply::new(code.unwrap_or(302), "");
            answer.headers.push(("location", ask.get("location").to_owned()));
            answer
        }
        Err(wrong) => wrong,
    }
}

fn headers(ask: &HttpRequest) -> HttpReply {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let key = ask.get("key");
    if !key.is_empty() {
        return HttpReply::ok(ask.headers.get(key).map(text).unwrap_or_default());
    }
    let mut all = Map::new();
    for name in ask.headers.keys().filter(|name| *name != http::header::HOST) {
        let values = ask.headers.get_all(name).iter().map(text).map(Value::from).collect();
        all.insert(header_case(name.as_str()), values);
    }
    HttpReply::ok(Value::Object(all).to_string())
}

/// A header name in Go's canonical form: `x-forwarded-for` becomes `X-Forwarded-For`.
fn header_case(name: &str) -> String {
    let part = |part: &str| {
        let (first, rest) = part.split_at(part.len().min(1));
        format!("{}{rest}", first.to_uppercase())
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

async fn exit(ask: &HttpRequest) -> HttpReply {
    let time = |name: &str| match ask.get(name) {
        "" => Ok(Duration::ZERO),
        text => duration(text).map_err(|_| {
            HttpReply::ok(format!(
                "argument '{name}' must be a valid golang duration or empty, got {text:?}\n"
            ))
        }),
    };
    let (code, wait, last) = match (code(ask), time("wait"), time("timeout")) {
        (Ok(code), Ok(wait), Ok(last)) => (code.unwrap_or(0), wait, last),
        (Err(wrong), ..) | (_, Err(wrong), _) | (.., Err(wrong)) => return wrong,
    };
    let end = async move {
        sleep(wait + last.min(Duration::from_millis(100))).await;
        std::process::exit(i32::from(code))
    };
    if last.is_zero() {
        return end.await;
    }
    tokio::spawn(end);
    HttpReply::ok("")
}

async fn shell(ask: &HttpRequest) -> HttpReply {
    let given = ask.get("shellCommand");
    let command = if given.is_empty() { ask.get("cmd") } else { given };
    // Agnhost mixes both streams; here stderr follows stdout.
    let ran = Command::new("/bin/sh").args(["-c", command]).output().await;
    let mut failed = Map::new();
    match ran {
        Ok(output) => {
            let bytes = [output.stdout, output.stderr].concat();
            if !bytes.is_empty() {
                failed.insert("output".to_owned(), String::from_utf8_lossy(&bytes).into());
            }
            if let Some(code) = output.status.code().filter(|code| *code != 0) {
                failed.insert("error".to_owned(), format!("exit status {code}").into());
            } else if output.status.code().is_none() {
                failed.insert("error".to_owned(), output.status.to_string().into());
            }
        }
        Err(error) => drop(failed.insert("error".to_owned(), error.to_string().into())),
    }
    HttpReply::ok(Value::Object(failed).to_string())
}

async fn dial(ask: &HttpRequest) -> HttpReply {
    let bad = |why: String| HttpReply::new(400, why);
    let tries = match ask.get("tries") {
        "" => 1,
        text => match text.parse::<u32>() {
            Ok(tries) => tries,
            Err(error) => return bad(format!("tries parameter is invalid. {error}")),
        },
    };
    let request = ask.get("request");
    if request.is_empty() {
        return bad("request parameter not specified.".to_owned());
    }
    let protocol = ask.get("protocol").to_lowercase();
    if !matches!(protocol.as_str(), "" | "http" | "udp") {
        return bad(format!("unsupported protocol. {protocol}"));
    }
    let (host, port) = (ask.get("host").trim_matches(['[', ']']), ask.get("port").parse::<u16>());
    let Ok(port) = port else { return bad("host and/or port param are invalid.".to_owned()) };
    let found = lookup_host((host, port)).await.ok().and_then(|mut all| all.next());
    let Some(address) = found else {
        return bad(format!("host and/or port param are invalid. lookup {host}: no such host"));
    };
    let mut failed = Map::new();
    let (responses, errors) = attempts(address, &protocol, request, tries).await;
    for (name, list) in [("responses", responses), ("errors", errors)] {
        if !list.is_empty() {
            failed.insert(name.to_owned(), json!(list));
        }
    }
    HttpReply::ok(Value::Object(failed).to_string())
}

/// Responses and errors.
async fn attempts(
    address: SocketAddr,
    protocol: &str,
    request: &str,
    tries: u32,
) -> (Vec<String>, Vec<String>) {
    let (mut responses, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..tries {
        let attempt = async {
            if protocol == "udp" {
                let failed = |error| format!("reading from udp connection failed. err:'{error}'");
                exchange(address, request).await.map_err(failed)
            } else {
                dial_http(address, request).await
            }
        };
        match timeout(DIAL, attempt).await {
            Ok(Ok(response)) => responses.push(response),
            Ok(Err(error)) => errors.push(error),
            Err(_) => errors.push(format!("no response from {address} within 5s")),
        }
    }
    (responses, errors)
}

async fn dial_http(address: SocketAddr, request: &str) -> Result<String, String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("Get \"http://{address}/{request}\": {error}");
    let stream = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    let asked = http::Request::get(format!("/{request}")).header("host", address.to_string());
    let asked = asked.body(Empty::<bytes::Bytes>::new()).map_err(|error| failed(&error))?;
    let answer = sender.send_request(asked).await.map_err(|error| failed(&error))?;
    let body = answer.into_body().collect().await.map_err(|error| failed(&error))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// The response to a UDP command; `None` if it is unknown.
fn udp_response(text: &str, client: SocketAddr, port: u16, hostname: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    match text.as_str() {
        "hostname" => Some(hostname.to_owned()),
        "clientip" => Some(client.to_string()),
        "serverport" => Some(port.to_string()),
        _ => text.strip_prefix("echo ").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_commands_are_answered() {
        let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        let answer = |text: &str| udp_response(text, client, 8081, "web-0");
        assert_eq!(answer("hostname\n").as_deref(), Some("web-0"));
        assert_eq!(answer("hostName").as_deref(), Some("web-0"));
        assert_eq!(answer("clientip").as_deref(), Some("10.0.0.1:4000"));
        assert_eq!(answer("serverport").as_deref(), Some("8081"));
        assert_eq!(answer("echo Two Words").as_deref(), Some("two words"));
        assert_eq!(answer("echo").as_deref(), None);
        assert_eq!(answer("").as_deref(), None);
    }

    #[test]
    fn header_names_are_canonical() {
        assert_eq!(header_case("x-forwarded-for"), "X-Forwarded-For");
    }
}
