//! Flags that several commands share, and parsers of flag values.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use jiff::SignedDuration;
use nearhop_core::hint::capacity::MaxUnzonedShare;
use nearhop_runtime::client::ClientOptions;
use nearhop_runtime::log::{self, LogFormat};

use crate::color;

/// The cluster to connect to.
#[derive(Debug, ClapArgs)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig file. Default: $KUBECONFIG, then the in-cluster service account, then
    /// ~/.kube/config.
    #[arg(help_heading = "Cluster", long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current context.
    #[arg(help_heading = "Cluster", long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    /// Whether the user named a cluster.
    pub(crate) fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Options of a client with the user agent `nearhop-NAME/VERSION`.
    pub(crate) fn client(&self, name: &str) -> ClientOptions {
        ClientOptions {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            user_agent: format!("nearhop-{name}/{}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// Logging.
#[derive(Debug, ClapArgs)]
pub(crate) struct LogArgs {
    /// Log level: 0 to 2 info, 3 and 4 debug (every write), 5 and more trace.
    #[arg(help_heading = "Logging", short = 'v', long, value_name = "LEVEL", default_value_t = 2)]
    verbosity: u8,

    /// Log format.
    #[arg(help_heading = "Logging", long, value_name = "text|json", default_value = "text")]
    log_format: LogFormat,
}

impl LogArgs {
    /// Starts logging.
    pub(crate) fn init(&self) {
        log::init(self.verbosity, self.log_format, color::of_logs());
    }
}

/// Reads `ADDRESS:PORT`, or `:PORT` on loopback.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let port = |text: &str| text.parse::<u16>().ok();
    if let Some(port) = text.strip_prefix(':').and_then(port) {
        return Ok(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port));
    }
    text.parse().map_err(|_| {
        "expected ADDRESS:PORT such as 127.0.0.1:6443, or :PORT on loopback".to_owned()
    })
}

/// Whether a text is a DNS label (RFC 1123), such as the name of a Namespace.
fn is_dns_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Reads the name of a Namespace.
pub(crate) fn parse_namespace(text: &str) -> Result<String, String> {
    if is_dns_label(text) {
        return Ok(text.to_owned());
    }
    Err("expected the name of a Namespace: up to 63 lowercase letters, digits and `-`, such as \
         kube-system"
        .to_owned())
}

/// Reads the domain of conditions: empty, or such as `example.com`.
pub(crate) fn parse_domain(text: &str) -> Result<String, String> {
    if text.is_empty() || (text.len() <= 253 && text.split('.').all(is_dns_label)) {
        return Ok(text.to_owned());
    }
    Err("expected a domain such as example.com, or an empty value".to_owned())
}

/// The longest duration, 100 years: an `Instant` cannot be moved by any number of seconds.
const LONGEST: Duration = Duration::from_secs(876_000 * 3600);

/// Reads `500ms`, `2s`, `1m30s` or `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 500ms, 2s or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let duration: SignedDuration = text.parse().map_err(|_| expected())?;
    let duration = Duration::try_from(duration).map_err(|_| expected())?;
    let fits = duration <= LONGEST;
    fits.then_some(duration).ok_or_else(|| "expected a duration of at most 876000h".to_owned())
}

/// Reads a duration in these limits.
pub(crate) fn parse_between(
    text: &str,
    least: Duration,
    most: Duration,
) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    let fits = (least..=most).contains(&duration);
    fits.then_some(duration).ok_or_else(|| format!("expected {least:?} to {most:?}"))
}

/// Reads `10%` or `12.5%`.
pub(crate) fn parse_share(text: &str) -> Result<MaxUnzonedShare, String> {
    let expected = || "expected a percentage from 0% to 100%, such as 10% or 12.5%".to_owned();
    let number: f64 = text.strip_suffix('%').and_then(|n| n.parse().ok()).ok_or_else(expected)?;
    if !(0.0..=100.0).contains(&number) {
        return Err(expected());
    }
    Ok(MaxUnzonedShare((number * 10.0).round() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_kubernetes_units() {
        for (text, millis) in [("0", 0), ("0s", 0), ("500ms", 500), ("2s", 2000), ("1m30s", 90_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "5", "-1s", "fast", "876001h", "9223372036854775807s"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
        let longest = parse_duration("876000h").expect("the longest");
        assert!(std::time::Instant::now().checked_add(longest).is_some());
    }

    #[test]
    fn invalid_namespaces_are_rejected() {
        assert_eq!(parse_namespace("kube-system").as_deref(), Ok("kube-system"));
        for bad in ["", "A B", "a b", "Kube", "-a", "a.b"] {
            assert!(parse_namespace(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn invalid_domains_are_rejected() {
        for good in ["", "nearhop.dev", "a-b.c1"] {
            assert_eq!(parse_domain(good).as_deref(), Ok(good));
        }
        for bad in ["a b", "a..b", "-a", "A.b", "a/"] {
            assert!(parse_domain(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("12.5%"), Ok(MaxUnzonedShare(125)));
        for bad in ["", "10", "-1%", "101%", "NaN%"] {
            assert!(parse_share(bad).is_err(), "{bad:?}");
        }
    }
}
