//! The request of `lab drive`: which Service, which clients, how many connections.

use std::str::FromStr;
use std::time::Duration;

use super::worker::{Family, Protocol};

/// Connections at the same time, over all clients.
const CONCURRENCY: usize = 24;

/// With a rate, as many as are open while each waits for its timeout, up to this number.
const MOST: usize = 4096;

/// `--from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Every node, evenly.
    Everywhere,
    /// A Pod of the Service's namespace, or of the one that is named.
    Pod(Option<String>, String),
    /// A node.
    Node(String),
    /// Every node of a zone, evenly.
    Zone(String),
    /// Outside the cluster, through node ports.
    External,
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            ["external"] => Ok(Self::External),
            ["node", name] => Ok(Self::Node((*name).to_owned())),
            ["zone", name] => Ok(Self::Zone((*name).to_owned())),
            ["pod", name] => Ok(Self::Pod(None, (*name).to_owned())),
            ["pod", namespace, name] => {
                Ok(Self::Pod(Some((*namespace).to_owned()), (*name).to_owned()))
            }
            _ => Err("expected pod/NAME, pod/NAMESPACE/NAME, node/NAME, zone/NAME or external"
                .to_owned()),
        }
    }
}

/// `[NAMESPACE/]NAME[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRef {
    /// Default: `default`.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name or number of the port. Default: the first of the protocol.
    pub port: Option<String>,
}

impl FromStr for ServiceRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, port) = match text.split_once(':') {
            Some((path, port)) => (path, Some(port.to_owned())),
            None => (text, None),
        };
        let (namespace, name) = path.split_once('/').unwrap_or(("default", path));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err("expected NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT".to_owned());
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port })
    }
}

/// The request of `lab drive`.
#[derive(Clone, Debug)]
pub struct Question {
    /// Target.
    pub service: ServiceRef,
    /// Clients.
    pub from: From,
    /// How many connections.
    pub amount: Amount,
    /// How many of them each client opens.
    pub split: Split,
    /// Connections at the same time, over all clients. None: 24, or with a rate as many as can wait.
    pub concurrency: Option<usize>,
    /// Timeout of a connection.
    pub timeout: Duration,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// By cluster IP or by name.
    pub by: By,
    /// Address family.
    pub family: Family,
}

/// How many connections: until the first limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount {
    /// Number over all clients. None: no limit.
    pub connections: Option<u64>,
    /// Time. None: no limit.
    pub duration: Option<Duration>,
    /// Connections per second over all clients. None: the next one begins when one ends.
    pub rate: Option<f64>,
}

/// How the connections are divided between clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// In proportion to the CPU of the node, as nearhop's policies expect the demand.
    Cpu,
    /// The same number from every node.
    Node,
    /// In proportion to the Pods of the Service's namespace on the node.
    Pod,
}

/// How clients address the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By its cluster IP.
    Address,
    /// By its name, resolved for each connection.
    Name,
}

impl Question {
    /// Connections at the same time, over all clients.
    pub(super) fn concurrency(&self) -> usize {
        let waiting = |rate: f64| (rate * self.timeout.as_secs_f64()).ceil() as usize;
        let chosen = self.amount.rate.map_or(CONCURRENCY, waiting);
        self.concurrency.unwrap_or(chosen.clamp(CONCURRENCY, MOST))
    }

    /// Connections that will be opened; None if that depends on their speed.
    pub(super) fn planned(&self) -> Option<u64> {
        let Amount { connections, duration, rate } = self.amount;
        let paced =
            duration.zip(rate).map(|(time, rate)| (time.as_secs_f64() * rate).round() as u64);
        match duration {
            None => connections,
            Some(_) => Some(paced?.min(connections.unwrap_or(u64::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_services_are_parsed() {
        let pod = |ns: Option<&str>| From::Pod(ns.map(str::to_owned), "web-0".to_owned());
        assert_eq!("pod/web-0".parse(), Ok(pod(None)));
        assert_eq!("pod/shop/web-0".parse(), Ok(pod(Some("shop"))));
        assert_eq!("zone/zone-a".parse(), Ok(From::Zone("zone-a".to_owned())));
        assert_eq!("external".parse(), Ok(From::External));
        assert!("rack/r1".parse::<From>().unwrap_err().contains("zone/NAME"));
        let service: ServiceRef = "shop/cart:http".parse().unwrap();
        assert_eq!((service.namespace.as_str(), service.name.as_str()), ("shop", "cart"));
        assert_eq!(service.port.as_deref(), Some("http"));
        assert_eq!("cart".parse::<ServiceRef>().unwrap().namespace, "default");
        assert!("a/b/c".parse::<ServiceRef>().is_err());
    }

    fn question(amount: Amount) -> Question {
        Question {
            service: "web".parse().unwrap(),
            from: From::Everywhere,
            amount,
            split: Split::Node,
            concurrency: None,
            timeout: Duration::from_secs(3),
            protocol: Protocol::Tcp,
            by: By::Address,
            family: Family::V4,
        }
    }

    #[test]
    fn a_rate_allows_as_many_connections_as_wait_for_a_timeout() {
        let none = Amount { connections: Some(10), duration: None, rate: None };
        assert_eq!(question(none).concurrency(), 24);
        let concurrency = |rate| question(Amount { rate: Some(rate), ..none }).concurrency();
        assert_eq!((concurrency(1.0), concurrency(100.0), concurrency(1e6)), (24, 300, 4096));
    }

    #[test]
    fn the_number_of_connections_is_known_unless_speed_decides() {
        let amount = |connections, seconds: Option<u64>, rate| {
            let duration = seconds.map(Duration::from_secs);
            question(Amount { connections, duration, rate }).planned()
        };
        assert_eq!(amount(Some(10), None, None), Some(10));
        assert_eq!(amount(Some(10), Some(5), None), None);
        assert_eq!(amount(None, Some(5), Some(2.5)), Some(13));
        assert_eq!(amount(Some(10), Some(5), Some(100.0)), Some(10));
    }
}
