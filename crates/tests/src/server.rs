//! Starts API servers for tests. No other file knows how the server under test is started.
//!
//! [`start`] runs it inside the test process, which is fast; [`start_process`] runs the `nearhop apiserver` command, which
//! is what users run and what a crash test can kill. If `NEARHOP_TEST_KUBECONFIG` names another cluster, [`given`]
//! connects to that cluster instead.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nearhop_apiserver::{ApiServer, Controllers, Durability, Faults, KubeletOptions};
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_runtime::pki::Pair;
use nearhop_runtime::tls::Trust;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::Target;

/// The variable that names a kubeconfig of another cluster to run the batteries against.
pub const GIVEN: &str = "NEARHOP_TEST_KUBECONFIG";

/// Options of a test server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Directory for the objects; without it they are in memory only.
    pub data_dir: Option<PathBuf>,
    /// Ranges for Service addresses; without it one IPv4 range.
    pub service_cidr: Option<String>,
    /// `host:port` to listen on; without it a free port.
    pub listen: Option<String>,
    /// Which controllers run in the server.
    pub controllers: Controllers,
    /// How the server requests logs and exec from nodes; the command has its own certificate.
    pub kubelets: KubeletOptions,
}

/// The origin of a server: it decides what a test can expect besides the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The embedded server: has the fault endpoint and its own controllers.
    Embedded,
    /// A cluster given from outside, which may lack controllers and cannot be disturbed.
    Given,
}

/// A running server.
pub struct Server {
    /// Client with the administrator's credentials.
    pub admin: Target,
    /// Token of the read-only user, if there is one.
    pub read_only: Option<String>,
    /// Path of a kubeconfig for stock clients.
    pub kubeconfig: PathBuf,
    /// Whether the server is embedded.
    pub origin: Origin,
    running: Running,
    _scratch: Option<TempDir>,
}

enum Running {
    Inside(Option<ApiServer>),
    Process(Option<Child>),
    Elsewhere,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Inside(server) = &mut self.running
            && let (Some(server), Ok(runtime)) =
                (server.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(server.stop());
        }
        self.kill();
    }
}

impl Server {
    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if let Running::Process(process) = &mut self.running
            && let Some(mut process) = process.take()
        {
            // The process may have ended already; `wait` prevents a zombie.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The process id, for reading its memory use.
    pub fn pid(&self) -> Option<u32> {
        match &self.running {
            Running::Process(process) => process.as_ref().map(Child::id),
            Running::Inside(_) | Running::Elsewhere => None,
        }
    }

    /// Sends one order to the fault endpoint of the embedded server.
    pub async fn fault(&self, order: &Value) -> Result<()> {
        self.admin.post("/nearhop/faults", order).await?.ok().context("fault order")?;
        Ok(())
    }
}

/// Starts an embedded server in this process.
pub async fn start(options: &Options) -> Result<Server> {
    let scratch = tempfile::tempdir()?;
    let usual = nearhop_apiserver::Options::default();
    let cluster = match &options.service_cidr {
        Some(text) => ClusterConfig::new(ServiceCidrs::parse(text)?),
        None => usual.cluster.clone(),
    };
    let durability = match &options.data_dir {
        Some(directory) => Durability::Directory(directory.clone()),
        None => Durability::Ephemeral,
    };
    let server = ApiServer::start(nearhop_apiserver::Options {
        listen: options.listen.as_deref().map_or(Ok(usual.listen), str::parse)?,
        durability,
        cluster,
        controllers: options.controllers,
        faults: Faults::OnDemand,
        kubelets: options.kubelets.clone(),
        ..usual
    })
    .await?;
    let kubeconfig = scratch.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let (admin, read_only) = read_kubeconfig(&kubeconfig)?;
    let running = Running::Inside(Some(server));
    let origin = Origin::Embedded;
    Ok(Server { admin, read_only, kubeconfig, origin, running, _scratch: Some(scratch) })
}

/// Starts the `nearhop apiserver` command.
pub fn start_process(options: &Options) -> Result<Server> {
    let scratch = tempfile::tempdir()?;
    let kubeconfig = scratch.path().join("kubeconfig");
    let mut command = Command::new(binary()?);
    let listen = options.listen.as_deref().unwrap_or("127.0.0.1:0");
    command.args(["apiserver", "--enable-faults", "--listen", listen, "--kubeconfig-out"]);
    command.arg(&kubeconfig);
    match &options.data_dir {
        Some(dir) => command.arg("--data-dir").arg(dir),
        None => command.arg("--ephemeral"),
    };
    if let Some(cidr) = &options.service_cidr {
        command.args(["--service-cidr", cidr]);
    }
    if options.controllers == Controllers::Bare {
        command.arg("--bare");
    }
    command.stdout(Stdio::piped()).stderr(log_file(scratch.path())?);
    let process = command.spawn().context("start nearhop apiserver")?;
    // From here on the guard kills the process if a step fails.
    let mut guard = Guard(Some(process));
    wait_until_listening(&mut guard, &kubeconfig, scratch.path())?;
    let (admin, read_only) = read_kubeconfig(&kubeconfig)?;
    let running = Running::Process(guard.0.take());
    let origin = Origin::Embedded;
    Ok(Server { admin, read_only, kubeconfig, origin, running, _scratch: Some(scratch) })
}

/// The cluster named by [`GIVEN`], if there is one.
pub fn given() -> Result<Option<Server>> {
    let Some(path) = std::env::var_os(GIVEN) else { return Ok(None) };
    let kubeconfig = PathBuf::from(path);
    let (admin, _) = read_kubeconfig(&kubeconfig)?;
    let (origin, running) = (Origin::Given, Running::Elsewhere);
    Ok(Some(Server { admin, read_only: None, kubeconfig, origin, running, _scratch: None }))
}

struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn log_file(dir: &Path) -> Result<Stdio> {
    Ok(Stdio::from(fs::File::create(dir.join("stderr"))?))
}

fn wait_until_listening(guard: &mut Guard, kubeconfig: &Path, scratch: &Path) -> Result<()> {
    let process = guard.0.as_mut().expect("the guard was just filled");
    let stdout = process.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // Keep the pipe drained, so that later output can never block the server.
    std::thread::spawn(move || lines.for_each(drop));
    if !first.contains("listening on https://") {
        let log = fs::read_to_string(scratch.join("stderr")).unwrap_or_default();
        bail!("nearhop apiserver printed {first:?} instead of its address; stderr: {log}");
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while !kubeconfig.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

pub(crate) fn read_kubeconfig(path: &Path) -> Result<(Target, Option<String>)> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let config: Value = serde_saphyr::from_str(&text).context("kubeconfig")?;
    let current = config["current-context"].as_str().unwrap_or_default();
    let context = named(&config["contexts"], current)["context"].clone();
    let cluster = named(&config["clusters"], text_of(&context["cluster"]))["cluster"].clone();
    let user_of =
        |context: &Value| named(&config["users"], text_of(&context["user"]))["user"].clone();
    let token_of = |context: &Value| user_of(context)["token"].as_str().map(str::to_owned);
    let trust = match cluster["insecure-skip-tls-verify"] {
        Value::Bool(true) => Trust::AnyServer,
        _ => Trust::Authorities(decoded(&cluster["certificate-authority-data"])?),
    };
    let user = user_of(&context);
    let identity = match (&user["client-certificate-data"], &user["client-key-data"]) {
        (Value::Null, _) | (_, Value::Null) => None,
        (certificate, key) => Some(Pair { certificate: decoded(certificate)?, key: decoded(key)? }),
    };
    let server = text_of(&cluster["server"]);
    let admin = Target::new(server, &trust, identity.as_ref(), token_of(&context))?;
    let read_only = token_of(&named(&config["contexts"], "read-only")["context"]);
    Ok((admin, read_only))
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().and_then(|l| l.iter().find(|e| e["name"] == name));
    found.unwrap_or(&Value::Null)
}

/// PEM from base64.
fn decoded(value: &Value) -> Result<String> {
    Ok(String::from_utf8(STANDARD.decode(text_of(value))?)?)
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Path of the `nearhop` command of this build; built once where it is missing.
pub fn binary() -> Result<PathBuf> {
    static BINARY: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let found = BINARY.get_or_init(|| find_or_build().map_err(|e| format!("{e:#}")));
    found.clone().map_err(anyhow::Error::msg)
}

/// Starts a daemon and waits for its first line, which has the address of its admin port.
pub fn start_daemon(command: &mut Command) -> Result<(Child, SocketAddr)> {
    let mut process = command.stdout(Stdio::piped()).spawn()?;
    let stdout = process.stdout.take().context("stdout is piped")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    std::thread::spawn(move || lines.for_each(drop));
    let address = first.strip_prefix("serving on http://").map(str::parse);
    let Some(Ok(admin)) = address else {
        let _ = process.kill();
        let _ = process.wait();
        bail!("{command:?} printed {first:?} instead of its address");
    };
    Ok((process, admin))
}

fn find_or_build() -> Result<PathBuf> {
    // `cargo xtask test` has built it already.
    if let Some(path) = std::env::var_os("NEARHOP_BINARY").map(PathBuf::from) {
        anyhow::ensure!(path.exists(), "NEARHOP_BINARY: {} does not exist", path.display());
        return Ok(path);
    }
    // Test executables are in target/<profile>/deps, commands one level above.
    let me = std::env::current_exe()?;
    let profile = me
        .parent()
        .and_then(Path::parent)
        .context("the test executable is not in target/<profile>/deps")?;
    let path = profile.join("nearhop");
    // Always runs cargo, because only cargo knows whether the command is up to date: `cargo test` of one crate does not
    // build it.
    let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    // With the features of this crate, so that cargo builds no crate twice.
    build.args(["build", "--quiet", "--package", "nearhop", "--package", "nearhop-tests"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    // `cargo test` sets these variables in this process. Build scripts that read them (ring's) would see a change, and
    // cargo would rebuild all dependents, here and in the next run.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&variable);
        }
    }
    if let Some(target) = profile.parent() {
        build.env("CARGO_TARGET_DIR", target);
    }
    if profile.ends_with("release") {
        // The profile of `cargo bench`.
        build.args(["--profile", "bench"]);
    }
    let status = build.status().context("run cargo build for the nearhop command")?;
    if !status.success() || !path.exists() {
        bail!("{} is missing and cargo build --package nearhop did not make it", path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn insecure_skip_tls_verify_accepts_another_authority() -> Result<()> {
        let server = start(&Options::default()).await?;
        let text = fs::read_to_string(&server.kubeconfig)?;
        let other = start(&Options::default()).await?;
        let foreign = fs::read_to_string(&other.kubeconfig)?;
        let ca_of = |text: &str| -> Result<String> {
            let line = text.lines().find(|line| line.contains("certificate-authority-data"));
            Ok(line.context("no CA in the kubeconfig")?.to_owned())
        };
        let path = server.kubeconfig.with_extension("changed");
        // With another CA the client refuses the server, unless it skips verification.
        fs::write(&path, text.replace(&ca_of(&text)?, &ca_of(&foreign)?))?;
        let (strict, _) = read_kubeconfig(&path)?;
        assert!(strict.get("/version").await.is_err());
        fs::write(&path, text.replace(&ca_of(&text)?, "    insecure-skip-tls-verify: true"))?;
        let (lax, _) = read_kubeconfig(&path)?;
        lax.get("/api/v1/nodes").await?.expect(200)?;
        Ok(())
    }
}
