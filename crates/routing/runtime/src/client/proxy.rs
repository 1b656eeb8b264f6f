//! Chooses the HTTP or SOCKS proxy for requests to the API server. Pure: the environment is an
//! argument.
//!
//! Follows client-go: `proxy-url` of the kubeconfig always applies. Without it `HTTPS_PROXY`
//! applies (`HTTP_PROXY` for a server without TLS), except for loopback addresses and for hosts in
//! `NO_PROXY`. `ALL_PROXY` belongs to curl and is ignored.

use std::ffi::OsString;
use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use ipnet::IpNet;

use crate::RuntimeError;

/// The name of the kubeconfig field, for messages.
const PROXY_URL: &str = "proxy-url of the kubeconfig";

/// A proxy, with its protocol and its credentials.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    found: Intercept,
    uri: Uri,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Https,
    Socks5,
}

impl Proxy {
    fn parse(setting: &str, value: &str) -> Result<Self, RuntimeError> {
        let wrong = || RuntimeError::Proxy { setting: setting.to_owned() };
        // hyper-util ignores a value that it cannot parse; the target address does not matter here.
        let matcher = Matcher::builder().all(value.trim()).build();
        let asked = Uri::from_static("https://api.invalid");
        let found = matcher.intercept(&asked).ok_or_else(wrong)?;
        let proxy = Self { uri: with_port(found.uri()).ok_or_else(wrong)?, found };
        proxy.known_protocol().ok_or_else(wrong)?;
        Ok(proxy)
    }

    /// The proxy's address, with its port.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.known_protocol().expect("only proxies with a known protocol are made")
    }

    fn known_protocol(&self) -> Option<Protocol> {
        match self.uri.scheme_str() {
            Some("http") => Some(Protocol::Http),
            Some("https") => Some(Protocol::Https),
            Some("socks5" | "socks5h") => Some(Protocol::Socks5),
            _ => None,
        }
    }

    /// User and password, for `Proxy-Authorization`.
    pub(super) fn authorization(&self) -> Option<http::HeaderValue> {
        self.found.basic_auth().cloned()
    }

    /// User and password, for SOCKS.
    pub(super) fn credentials(&self) -> Option<(&str, &str)> {
        self.found.raw_auth()
    }
}

/// The same URI with the default port of its protocol, where it names no port.
fn with_port(uri: &Uri) -> Option<Uri> {
    let host = uri.host().filter(|host| !host.is_empty())?;
    let usual = match uri.scheme_str() {
        Some("https") => 443,
        Some("socks5" | "socks5h") => 1080,
        _ => 80,
    };
    let authority = format!("{host}:{}", uri.port_u16().unwrap_or(usual));
    let uri = Uri::builder().scheme(uri.scheme_str()?).authority(authority).path_and_query("/");
    uri.build().ok()
}

/// The proxy for a server; `configured` is `proxy-url` of the kubeconfig.
pub(super) fn choose(
    server: &Uri,
    configured: Option<&str>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Proxy>, RuntimeError> {
    if let Some(url) = configured {
        return Proxy::parse(PROXY_URL, url).map(Some);
    }
    let first = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            let value = variable(name)?.to_string_lossy().trim().to_owned();
            (!value.is_empty()).then_some((name, value))
        })
    };
    let plain = server.scheme_str() == Some("http");
    let names = if plain { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
    let Some((name, url)) = first(names) else { return Ok(None) };
    let target = Target::of(server, if plain { 80 } else { 443 });
    let exceptions = first(["NO_PROXY", "no_proxy"]).map(|(_, list)| list).unwrap_or_default();
    if target.is_loopback() || target.is_excepted(&exceptions) {
        return Ok(None);
    }
    Proxy::parse(name, &url).map(Some)
}

/// The API server that the client connects to.
struct Target {
    host: String,
    address: Option<IpAddr>,
    port: u16,
}

impl Target {
    fn of(server: &Uri, usual_port: u16) -> Self {
        let host = server.host().unwrap_or_default().to_ascii_lowercase();
        let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_owned();
        let address = parse_address(&host);
        Self { address, port: server.port_u16().unwrap_or(usual_port), host }
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.address.is_some_and(|address| address.is_loopback())
    }

    /// Whether `NO_PROXY` lists this server, with Go's rules: an entry is a name (with a leading
    /// dot or `*.` only its subdomains match) or an address, each with or without a port, a CIDR
    /// range, or `*` for every server. Invalid entries are ignored.
    fn is_excepted(&self, list: &str) -> bool {
        let entries = list.split(',').map(|entry| entry.trim().to_ascii_lowercase());
        entries.filter(|entry| !entry.is_empty()).any(|entry| self.matches(&entry))
    }

    fn matches(&self, entry: &str) -> bool {
        if entry == "*" {
            return true;
        }
        if entry.contains('/') {
            let range = entry.parse::<IpNet>().ok().zip(self.address);
            return range.is_some_and(|(range, address)| range.contains(&address));
        }
        if let Some(address) = parse_address(entry.trim_matches(['[', ']'])) {
            return self.address == Some(address);
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (entry, None),
        };
        if port.is_some_and(|port| port.parse() != Ok(self.port)) {
            return false;
        }
        if let Some(address) = parse_address(host.trim_matches(['[', ']'])) {
            return self.address == Some(address);
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        match host.strip_prefix('.') {
            _ if host.trim_start_matches('.').is_empty() => false,
            Some(_) => self.host.ends_with(host),
            None => self.host == host || self.host.ends_with(&format!(".{host}")),
        }
    }
}

/// Parses an address, and converts an IPv4-mapped IPv6 address to IPv4.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "https://api.example.com:6443";

    fn chosen(server: &str, configured: Option<&str>, variables: &[(&str, &str)]) -> String {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        match choose(&server.parse().unwrap(), configured, variable) {
            Ok(Some(proxy)) => format!("{:?} {}", proxy.protocol(), proxy.uri()),
            Ok(None) => "direct".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn kubeconfig_takes_precedence_over_the_environment() {
        let both = [("HTTPS_PROXY", "http://env:1"), ("NO_PROXY", "*")];
        assert_eq!(chosen(SERVER, Some("http://file:2"), &both), "Http http://file:2/");
        assert_eq!(chosen(SERVER, None, &both[..1]), "Http http://env:1/");
        assert_eq!(chosen(SERVER, None, &[]), "direct");
    }

    #[test]
    fn environment_variables_match_go() {
        let env = |name, value| chosen(SERVER, None, &[(name, value)]);
        assert_eq!(env("https_proxy", "proxy:3128"), "Http http://proxy:3128/");
        assert_eq!(env("HTTPS_PROXY", "socks5://proxy"), "Socks5 socks5://proxy:1080/");
        assert_eq!(env("HTTPS_PROXY", "https://u:p@proxy"), "Https https://proxy:443/");
        assert_eq!(env("HTTPS_PROXY", " "), "direct");
        for other in ["ALL_PROXY", "HTTP_PROXY"] {
            assert_eq!(env(other, "http://proxy:1"), "direct", "{other}");
        }
        let plain = chosen("http://api:80", None, &[("HTTP_PROXY", "http://proxy:1")]);
        assert_eq!(plain, "Http http://proxy:1/");
    }

    #[test]
    fn credentials_are_decoded_and_kept_out_of_the_address() {
        let variable = |_: &str| Some(OsString::from("http://me:p%40ss@proxy:1"));
        let proxy = choose(&SERVER.parse().unwrap(), Some("http://me:p%40ss@proxy:1"), variable);
        let proxy = proxy.unwrap().unwrap();
        assert_eq!(proxy.uri(), "http://proxy:1/");
        assert_eq!(proxy.authorization().unwrap(), "Basic bWU6cEBzcw==");
    }

    #[test]
    fn an_invalid_proxy_is_reported_with_its_setting() {
        for nonsense in ["::::", "ftp://proxy", "http://", "socks4://proxy", "what is this"] {
            let error = chosen(SERVER, None, &[("https_proxy", nonsense)]);
            assert!(error.starts_with("https_proxy does not name a proxy"), "{nonsense}: {error}");
            let error = chosen(SERVER, Some(nonsense), &[]);
            assert!(error.starts_with("proxy-url of the kubeconfig does not"), "{error}");
        }
        // An invalid value has no effect where no proxy is used.
        let error = chosen("https://127.0.0.1:6443", None, &[("HTTPS_PROXY", "::::")]);
        assert_eq!(error, "direct");
    }

    #[test]
    fn loopback_is_reached_directly() {
        let proxy = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", "::,,[")];
        for server in [
            "https://127.0.0.1:1",
            "https://127.9.9.9",
            "https://[::1]:6443",
            "https://localhost:6443",
            "https://LOCALHOST",
            "https://[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(chosen(server, None, &proxy), "direct", "{server}");
        }
        assert_eq!(chosen("https://localhost.example.com", None, &proxy), "Http http://proxy:1/");
    }

    #[test]
    fn no_proxy_matches_go() {
        let direct = |server: &str, list: &str| {
            let variables = [("HTTPS_PROXY", "http://proxy:1"), ("no_proxy", list)];
            chosen(server, None, &variables) == "direct"
        };
        for (list, expected) in [
            ("*", true),
            (" x , * ", true),
            ("example.com", true),
            (".example.com", true),
            ("*.example.com", true),
            ("API.EXAMPLE.COM", true),
            ("api.example.com:6443", true),
            ("api.example.com:443", false),
            (".com:6443", true),
            (".api.example.com", false),
            ("ample.com", false),
            ("*ample.com", false),
            ("", false),
            (":6443", false),
            (".", false),
            ("10.0.0.0/8", false),
            ("api.example.com:https", false),
        ] {
            assert_eq!(direct(SERVER, list), expected, "{list:?}");
        }
        for (list, expected) in [
            ("10.0.0.0/8", true),
            ("10.1.2.3", true),
            ("10.1.2.3:443", true),
            ("10.1.2.3:1", false),
            ("0.0.0.0/0", true),
            ("10.1.2.0/33", false),
            ("11.0.0.0/8", false),
            ("::/0", false),
            ("::ffff:10.1.2.3", true),
            ("10.1", false),
        ] {
            assert_eq!(direct("https://10.1.2.3", list), expected, "{list:?}");
        }
        for (list, expected) in [
            ("fd00::/8", true),
            ("fd00::1", true),
            ("[fd00::1]", true),
            ("[fd00::1]:6443", true),
            ("[fd00::1]:1", false),
            ("::/0", true),
            ("fe80::/10", false),
        ] {
            assert_eq!(direct("https://[fd00::1]:6443", list), expected, "{list:?}");
        }
    }
}
