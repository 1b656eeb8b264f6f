//! Probes: actions, timing and thresholds. Pure.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// The state before the first result.
    pub(crate) const fn at_first(self) -> bool {
        matches!(self, Self::Liveness)
    }
}

pub(crate) fn kinds(container: &Container) -> Vec<ProbeKind> {
    let all = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ];
    all.into_iter().filter(|(_, probe)| probe.is_some()).map(|(kind, _)| kind).collect()
}

pub(crate) fn of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// The result of a probe.
#[derive(Debug)]
pub(crate) struct ProbeResult {
    /// The new state, if it has changed.
    pub(crate) change: Option<bool>,
    /// Why the probe failed.
    pub(crate) failure: Option<String>,
}

/// Counts consecutive results against the thresholds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeCounter {
    state: bool,
    /// The failure was already reported.
    reported: bool,
    answer: bool,
    row: u32,
    successes: u32,
    failures: u32,
}

impl ProbeCounter {
    pub(crate) fn new(kind: ProbeKind, probe: &Probe) -> Self {
        let count = |number: Option<i32>, usual: u32| {
            number.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(usual)
        };
        Self {
            state: kind.at_first(),
            reported: false,
            answer: false,
            row: 0,
            successes: count(probe.success_threshold, 1),
            failures: count(probe.failure_threshold, 3),
        }
    }

    /// Adds a result; returns the new state if it has changed.
    ///
    /// The first failure counts as a change even if the state was unhealthy before: a container
    /// whose startup probe never succeeds must be restarted.
    pub(crate) fn take(&mut self, healthy: bool) -> Option<bool> {
        self.row = if self.answer == healthy { self.row + 1 } else { 1 };
        self.answer = healthy;
        let enough = if healthy { self.successes } else { self.failures };
        let change = healthy != self.state || (!healthy && !self.reported);
        if self.row < enough || !change {
            return None;
        }
        (self.state, self.reported) = (healthy, !healthy);
        Some(healthy)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeAction {
    Http { host: Option<String>, port: u16, path: String, headers: Vec<(String, String)> },
    Tcp { host: Option<String>, port: u16 },
    Exec(Vec<String>),
}

/// The action of a probe, or why it is invalid.
pub(crate) fn action(container: &Container, probe: &Probe) -> Result<ProbeAction, String> {
    if let Some(exec) = &probe.exec {
        return Ok(ProbeAction::Exec(exec.command.clone().unwrap_or_default()));
    }
    if let Some(http) = &probe.http_get {
        if http.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
            return Err("the agent does not support httpGet.scheme HTTPS: use HTTP".to_owned());
        }
        let headers = http.http_headers.iter().flatten();
        let path = http.path.clone().unwrap_or_else(|| "/".to_owned());
        return Ok(ProbeAction::Http {
            host: http.host.clone().filter(|host| !host.is_empty()),
            port: port(container, &http.port)?,
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            headers: headers.map(|it| (it.name.clone(), it.value.clone())).collect(),
        });
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.clone().filter(|host| !host.is_empty());
        return Ok(ProbeAction::Tcp { host, port: port(container, &tcp.port)? });
    }
    Err("the agent does not support this probe: use httpGet, tcpSocket or exec".to_owned())
}

fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    match port {
        IntOrString::Int(number) => {
            u16::try_from(*number).map_err(|_| format!("{number} is not a port number"))
        }
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_deref() == Some(name));
            let number = found.and_then(|port| u16::try_from(port.container_port).ok());
            number
                .or_else(|| name.parse().ok())
                .ok_or_else(|| format!("the container has no port named {name:?}"))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeTiming {
    pub(crate) initial: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
}

impl ProbeTiming {
    pub(crate) fn of(probe: &Probe) -> Self {
        let seconds = |number: Option<i32>, usual: u64| {
            Duration::from_secs(number.and_then(|n| u64::try_from(n).ok()).unwrap_or(usual))
        };
        let at_least_one =
            |number: Option<i32>, usual| seconds(number, usual).max(Duration::from_secs(1));
        Self {
            initial: seconds(probe.initial_delay_seconds, 0),
            period: at_least_one(probe.period_seconds, 10),
            timeout: at_least_one(probe.timeout_seconds, 1),
        }
    }
}

/// The host to probe: by default the Pod's address.
pub(crate) fn host(named: Option<&str>, pod: Option<IpAddr>) -> Option<String> {
    named.map(str::to_owned).or_else(|| pod.map(|address| address.to_string()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction};

    use super::*;

    #[test]
    fn thresholds_count_consecutive_results() {
        let probe =
            Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
        let mut counter = ProbeCounter::new(ProbeKind::Readiness, &probe);
        let changes: Vec<Option<bool>> =
            [true, false, true, true, true, false, false, true, false, false, false, false]
                .into_iter()
                .map(|answer| counter.take(answer))
                .collect();
        let mut expected = vec![None; 12];
        expected[3] = Some(true);
        expected[10] = Some(false);
        assert_eq!(changes, expected);
    }

    #[test]
    fn the_first_startup_failure_is_reported_once() {
        let probe = Probe { failure_threshold: Some(2), ..Probe::default() };
        let mut counter = ProbeCounter::new(ProbeKind::Startup, &probe);
        let changes: Vec<Option<bool>> = (0..5).map(|_| counter.take(false)).collect();
        assert_eq!(changes, [None, Some(false), None, None, None]);
    }

    #[test]
    fn named_ports_are_resolved() {
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("web".to_owned()),
                container_port: 8080,
                ..ContainerPort::default()
            }]),
            ..Container::default()
        };
        let ask = |port| {
            let http = HTTPGetAction { port, path: Some("x".to_owned()), ..Default::default() };
            action(&container, &Probe { http_get: Some(http), ..Probe::default() })
        };
        let asked = ask(IntOrString::String("web".to_owned())).unwrap();
        assert!(matches!(asked, ProbeAction::Http { port: 8080, ref path, .. } if path == "/x"));
        assert!(ask(IntOrString::String("other".to_owned())).unwrap_err().contains("other"));
        assert!(action(&container, &Probe::default()).is_err());
    }
}
