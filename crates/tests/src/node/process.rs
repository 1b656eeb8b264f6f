//! The `nearhop proxy` command as a child process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nearhop_net::Namespace;
use serde_json::Value;

use super::{CLUSTER_CIDR, NAMESPACE, NODE, Site, until};
use crate::scene::read_metric;
use crate::server::{binary, start_daemon};

/// Address of the proxy's health port on the node.
pub const HEALTH: ([u8; 4], u16) = ([127, 0, 0, 1], 10256);

/// A running proxy; killed when dropped.
pub struct ProxyProcess {
    process: Child,
    /// Address of its admin port (`/metrics`, `/debug/services`) on the node.
    pub admin: SocketAddr,
}

/// The command with the arguments that every test needs.
pub fn command(site: &Site, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(["proxy", "--hostname-override", NODE, "--cluster-cidr", CLUSTER_CIDR]);
    command.args(["--healthz-bind-address", "127.0.0.1:10256", "--kubeconfig"]);
    command.arg(&site.kubeconfig);
    if !arguments.contains(&"--state-dir") {
        command.arg("--state-dir").arg(site.kubeconfig.with_file_name("proxy-state"));
    }
    command.args(arguments);
    Ok(command)
}

/// Runs the command to its end.
pub fn output(site: &Site, arguments: &[&str]) -> Result<Output> {
    Ok(command(site, arguments)?.stdin(Stdio::null()).output()?)
}

impl ProxyProcess {
    /// Starts it with further arguments, and waits until the first sync is done.
    pub fn start(site: &Site, arguments: &[&str]) -> Result<Self> {
        let proxy = Self::launch(site, arguments)?;
        proxy.until_ready()?;
        Ok(proxy)
    }

    /// Starts it with further arguments, and waits until its admin port listens.
    pub fn launch(site: &Site, arguments: &[&str]) -> Result<Self> {
        Self::launch_command(command(site, arguments)?, arguments)
    }

    /// The same, with its log in a file.
    pub fn launch_with_log(site: &Site, arguments: &[&str], log: &Path) -> Result<Self> {
        let mut command = command(site, arguments)?;
        command.stderr(std::fs::File::create(log)?);
        Self::launch_command(command, arguments)
    }

    fn launch_command(mut command: Command, arguments: &[&str]) -> Result<Self> {
        if !arguments.contains(&"--metrics-bind-address") {
            command.args(["--metrics-bind-address", "127.0.0.1:0"]);
        }
        let (process, admin) = start_daemon(&mut command)?;
        Ok(Self { process, admin })
    }

    /// Waits until `/readyz` returns 200.
    pub fn until_ready(&self) -> Result<()> {
        until("/readyz", || {
            let (status, body) = self.get("/readyz")?;
            Ok(if status == 200 { Ok(()) } else { Err(body) })
        })
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Sends SIGTERM, and waits until it ends.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        let mut kill = Command::new("kill");
        let status = kill.arg("-TERM").arg(self.process.id().to_string()).status()?;
        anyhow::ensure!(status.success(), "kill -TERM failed");
        Ok(self.process.wait()?)
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    /// Sends a GET request to its admin port; returns status and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        get(self.admin, path, "")
    }

    /// The value of a series in its metrics; 0 if it is not there.
    pub fn metric(&self, series: &str) -> Result<f64> {
        Ok(read_metric(&self.get("/metrics")?.1, series))
    }

    /// `/debug/services` about a Service; `None` if the proxy does not serve it.
    pub fn describe(&self, service: &str) -> Result<Option<Value>> {
        let (status, body) = self.get(&format!("/debug/services/{NAMESPACE}/{service}"))?;
        match status {
            200 => Ok(Some(serde_json::from_str(&body)?)),
            404 => Ok(None),
            _ => bail!("{status}: {body}"),
        }
    }

    /// The endpoints that the kernel holds for each of a Service's addresses, `10.96.0.1:80` or
    /// `node:30080`; `None` while the kernel does not hold the desired ones.
    pub fn programmed(&self, service: &str) -> Result<Option<Programmed>> {
        let Some(described) = self.describe(service)? else { return Ok(None) };
        let mut found = Programmed::new();
        for port in described["ports"].as_array().into_iter().flatten() {
            for frontend in port["frontends"].as_array().into_iter().flatten() {
                if frontend["inStep"] != true {
                    return Ok(None);
                }
                let endpoints = frontend["programmed"].as_object().into_iter().flatten();
                let ips = endpoints.map(|(at, _)| Ok(at.parse::<SocketAddr>()?.ip()));
                let at = frontend["at"].as_str().unwrap_or_default().to_owned();
                found.insert(at, ips.collect::<Result<_>>()?);
            }
        }
        let waiting = described["waiting"] == true || found.is_empty();
        Ok((!waiting).then_some(found))
    }

    /// Waits until all addresses of a Service lead to these endpoints.
    pub fn until_programmed(&self, service: &str, wanted: &[IpAddr]) -> Result<()> {
        let wanted: BTreeSet<IpAddr> = wanted.iter().copied().collect();
        until(&format!("{service} at {wanted:?}"), || {
            let found = self.programmed(service)?;
            let all = found.as_ref().is_some_and(|f| f.values().all(|ips| *ips == wanted));
            Ok(if all { Ok(()) } else { Err(format!("it is {found:?}")) })
        })
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Endpoints by address.
pub type Programmed = BTreeMap<String, BTreeSet<IpAddr>>;

/// Sends a GET request from the calling thread's namespace; returns status and body. Each header
/// ends in `\r\n`.
pub fn get(at: SocketAddr, path: &str, headers: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&at, super::TIMEOUT)?;
    stream.set_read_timeout(Some(super::TIMEOUT))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((status.with_context(|| format!("not HTTP: {answer:?}"))?, body.unwrap_or_default()))
}

/// The same from another namespace.
pub fn get_from(
    from: &Namespace,
    at: SocketAddr,
    path: &str,
    headers: &str,
) -> Result<(u16, String)> {
    from.run(|| get(at, path, headers))
}

/// Sends a GET request (`/healthz`, `/livez`) to the proxy's health port; returns status and body.
pub fn probe(path: &str) -> Result<(u16, String)> {
    get(SocketAddr::from(HEALTH), path, "")
}
