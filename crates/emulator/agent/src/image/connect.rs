//! `agnhost connect`: one connection attempt; prints why it failed.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::flags::{Flags, duration};
use super::print_line;
use super::serve::exchange;

/// The default timeout.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn run(flags: Flags) -> u8 {
    match attempt(flags).await {
        Ok(()) => 0,
        Err(why) => {
            print_line(&why);
            1
        }
    }
}

async fn attempt(mut flags: Flags) -> Result<(), String> {
    let unknown = |why: String| format!("UNKNOWN: {why}");
    let limit = flags.text("timeout").map(|it| duration(&it)).transpose().map_err(unknown)?;
    let limit = limit.filter(|limit| !limit.is_zero()).unwrap_or(FOREVER);
    let protocol = flags.text("protocol").unwrap_or_else(|| "tcp".to_owned());
    let data = flags.text("udp-data").unwrap_or_else(|| "hostname".to_owned());
    let words = flags.rest().map_err(unknown)?;
    let [target] = words.as_slice() else {
        return Err(unknown("expected one argument host:port".to_owned()));
    };
    if target.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(unknown(format!("address {target}: missing port in address")));
    }
    let mut found = lookup_host(target).await.map_err(|error| format!("DNS: {error}"))?;
    let address = found.next().ok_or_else(|| "DNS: no such host".to_owned())?;
    let connected = match protocol.as_str() {
        "" | "tcp" => timeout(limit, TcpStream::connect(address)).await.map(|it| it.map(drop)),
        "udp" => {
            timeout(limit, exchange(address, &format!("{data}\n"))).await.map(|it| it.map(drop))
        }
        other => return Err(format!("Unsupported protocol {other}")),
    };
    match connected {
        Err(_) => Err("TIMEOUT".to_owned()),
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Err("REFUSED".to_owned()),
        Ok(Err(error)) if error.kind() == ErrorKind::TimedOut => Err("TIMEOUT".to_owned()),
        Ok(Err(error)) => Err(format!("OTHER: {error}")),
    }
}
