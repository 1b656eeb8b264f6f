//! A kube client for daemons: it finds its configuration as kubectl does, sends a user agent,
//! counts its requests, and does not use kube's own retries.
//!
//! ```text
//!   mod        which cluster and which configuration
//!   proxy      which proxy                       (pure)
//!   transport  sockets, TLS and kube's layers
//!   sender     one request and its failure      refusal   how the server rejects it (pure)
//!   events     writes Kubernetes Events          versions  known versions of own writes (pure)
//! ```
//!
//! Request timeouts are not here. A watch may be silent for a long time and a write may not, and
//! only the caller knows which of them it sends: wrap requests in `tokio::time::timeout`.

mod events;
mod proxy;
mod refusal;
mod sender;
mod transport;
mod versions;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::request::{Parts, Request};
pub use k8s_openapi::api::core::v1::ObjectReference;
pub use kube::Client;
use kube::Config;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::util::{MapRequestLayer, option_layer};

pub use crate::client::events::{Event, EventRecorder, EventType, EventWriter};
pub use crate::client::refusal::{Refusal, retry_after};
pub use crate::client::sender::{ApiCall, ApiFailure, ApiSender, Fence};
pub use crate::client::versions::{KnownVersions, Outdated};
use crate::error::KnownContexts;
use crate::metrics::{ContactLayer, Metrics};
use crate::{RuntimeError, error_chain, root_cause};

/// The timeout to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The cluster, and the user agent.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// `--kubeconfig`. Without it the client tries `KUBECONFIG`, the Pod's service account and
    /// `~/.kube/config`, in this order.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`. Without it the current context of the kubeconfig.
    pub context: Option<String>,
    /// The `User-Agent`, which the server's audit log and metrics show.
    pub user_agent: String,
}

/// The placeholder in a configuration without a proxy. Without it kube reads the environment, and
/// rejects the configuration if a variable that does not apply is invalid.
const NO_PROXY_URL: &str = "http://none.invalid";

/// How the client reaches the server.
#[derive(Clone, Copy)]
pub enum Way<'a> {
    /// As the kubeconfig and these environment variables say, perhaps through a proxy.
    Configured(&'a (dyn Fn(&str) -> Option<OsString> + Sync)),
    /// Without a proxy, whatever the kubeconfig and the environment say.
    Direct,
}

impl Way<'_> {
    fn variable(self, name: &str) -> Option<OsString> {
        match self {
            Self::Configured(variable) => variable(name),
            Self::Direct => std::env::var_os(name),
        }
    }
}

/// Creates a client. Sends nothing to the server yet.
pub async fn connect(
    options: &ClientOptions,
    metrics: Option<&Metrics>,
) -> Result<Client, RuntimeError> {
    connect_recorded(options, metrics, |_| {}).await
}

/// Like [`connect`], with another [`Way`] than the environment of the process.
pub async fn connect_by(
    way: Way<'_>,
    options: &ClientOptions,
    metrics: Option<&Metrics>,
) -> Result<Client, RuntimeError> {
    make(way, options, metrics, |_| {}).await
}

/// Like [`connect`], and calls `record` for each request before it is sent.
pub async fn connect_recorded(
    options: &ClientOptions,
    metrics: Option<&Metrics>,
    record: impl Fn(&Parts) + Clone + Send + Sync + 'static,
) -> Result<Client, RuntimeError> {
    make(Way::Configured(&|name| std::env::var_os(name)), options, metrics, record).await
}

async fn make(
    way: Way<'_>,
    options: &ClientOptions,
    metrics: Option<&Metrics>,
    record: impl Fn(&Parts) + Clone + Send + Sync + 'static,
) -> Result<Client, RuntimeError> {
    let mut config = configure(way, options).await?;
    let configured = config.proxy_url.take().map(|url| url.to_string());
    let proxy = match way {
        Way::Direct => None,
        Way::Configured(variable) => {
            proxy::choose(&config.cluster_url, configured.as_deref(), variable)?
        }
    };
    if let Some(proxy) = &proxy {
        tracing::info!(server = %config.cluster_url, proxy = %proxy.uri(), "using a proxy");
    }
    let url = config.cluster_url.to_string();
    let host = config.cluster_url.authority().map_or_else(|| url.clone(), ToString::to_string);
    let refused = |why| RuntimeError::Client { url, why: Box::new(why) };
    let counting = option_layer(metrics.map(|metrics| metrics.rest_client(&host)));
    let listening = metrics.map_or_else(ContactLayer::idle, Metrics::watch_contact);
    let recording = MapRequestLayer::new(move |request: Request<Body>| {
        let (parts, body) = request.into_parts();
        record(&parts);
        Request::from_parts(parts, body)
    });
    let builder = transport::build(&config, proxy.as_ref()).map_err(refused)?;
    Ok(builder.with_layer(&listening).with_layer(&counting).with_layer(&recording).build())
}

/// Why a request failed, for a user: what the API server answered, or why it cannot be reached. The
/// outer messages of kube and hyper name only their own layers.
pub fn describe_failure(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            format!("cannot reach the API server: {}", root_cause(error))
        }
        other => error_chain(other),
    }
}

/// The CA certificates of the cluster, as DER; empty where the configuration names none and the
/// client trusts those of the host.
pub async fn authorities(options: &ClientOptions) -> Result<Vec<Vec<u8>>, RuntimeError> {
    Ok(configure(Way::Direct, options).await?.root_cert.unwrap_or_default())
}

async fn configure(way: Way<'_>, options: &ClientOptions) -> Result<Config, RuntimeError> {
    let agent = HeaderValue::from_str(&options.user_agent)
        .map_err(|_| RuntimeError::UserAgent(options.user_agent.clone()))?;
    let mut config = match choose_source(options, |name| way.variable(name))? {
        Source::InCluster => Config::incluster().map_err(RuntimeError::InCluster)?,
        Source::Files(files) => read_files(way, files, options.context.clone()).await?,
    };
    config.headers.push((USER_AGENT, agent));
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // kube applies it to a connection, not to a request, so it would end idle watches.
    config.read_timeout = None;
    // Callers back off for each object on their own; a retry in kube would only hide the load.
    config.default_retry = false;
    Ok(config)
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// The files are merged; for each setting the first file that has it wins.
    Files(Vec<PathBuf>),
    InCluster,
}

/// kube would prefer `~/.kube/config` to the service account, and a Pod's image may contain such a
/// file by accident. This function keeps client-go's order. A context exists only in a kubeconfig,
/// so `--context` excludes the service account.
fn choose_source(
    options: &ClientOptions,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Source, RuntimeError> {
    if let Some(file) = &options.kubeconfig {
        return Ok(Source::Files(vec![file.clone()]));
    }
    let listed = variable("KUBECONFIG").unwrap_or_default();
    let files: Vec<PathBuf> =
        std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if !files.is_empty() {
        return Ok(Source::Files(files));
    }
    if options.context.is_none() && variable("KUBERNETES_SERVICE_HOST").is_some() {
        return Ok(Source::InCluster);
    }
    let home = variable("HOME").filter(|home| !home.is_empty()).ok_or(RuntimeError::NoCluster)?;
    Ok(Source::Files(vec![PathBuf::from(home).join(".kube/config")]))
}

async fn read_files(
    way: Way<'_>,
    files: Vec<PathBuf>,
    context: Option<String>,
) -> Result<Config, RuntimeError> {
    let mut merged = match merge(&files) {
        Ok(Some(merged)) => merged,
        Ok(None) => return Err(RuntimeError::NoSuchKubeconfig { files }),
        Err(why) => return Err(explain(files, why, &KnownContexts(Vec::new()), None)),
    };
    let known = merged.contexts.iter().map(|named| named.name.clone()).collect();
    let known = KnownContexts(known);
    for cluster in merged.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let named = cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty());
        if !named || matches!(way, Way::Direct) {
            cluster.proxy_url = Some(NO_PROXY_URL.to_owned());
        }
    }
    let current = context.clone().or_else(|| merged.current_context.clone());
    let choice = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(merged, &choice).await;
    let mut config = config.map_err(|why| explain(files, why, &known, current))?;
    config.proxy_url = config.proxy_url.filter(|url| url.host() != Some("none.invalid"));
    Ok(config)
}

/// The cause and its cure, each said once: the messages of kube repeat the path and the cause.
fn explain(
    files: Vec<PathBuf>,
    why: KubeconfigError,
    known: &KnownContexts,
    context: Option<String>,
) -> RuntimeError {
    let known = known.clone();
    match (why, context) {
        (KubeconfigError::ReadConfig(why, file), _) if why.kind() == ErrorKind::NotFound => {
            RuntimeError::MissingKubeconfig { file }
        }
        (KubeconfigError::ReadConfig(why, file), _) => {
            RuntimeError::UnreadableKubeconfig { file, why }
        }
        (KubeconfigError::CurrentContextNotSet, _) => {
            RuntimeError::NoCurrentContext { files, known }
        }
        (KubeconfigError::LoadContext(_), Some(context)) => {
            RuntimeError::NoSuchContext { files, context, known }
        }
        (why, _) => RuntimeError::Kubeconfig { files, why },
    }
}

/// Like kubectl, ignores files that are missing; returns `None` if all are.
fn merge(files: &[PathBuf]) -> Result<Option<Kubeconfig>, KubeconfigError> {
    if let [file] = files {
        return Kubeconfig::read_from(file).map(Some);
    }
    let mut merged: Option<Kubeconfig> = None;
    for file in files.iter().filter(|file| file.exists()) {
        let next = Kubeconfig::read_from(file)?;
        merged = Some(match merged {
            None => next,
            Some(earlier) => earlier.merge(next)?,
        });
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_POD: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    const HOME: (&str, &str) = ("HOME", "/root");

    fn chosen(options: &ClientOptions, variables: &[(&str, &str)]) -> String {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        match choose_source(options, variable) {
            Ok(Source::InCluster) => "in-cluster".to_owned(),
            Ok(Source::Files(files)) => {
                files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn sources_are_tried_in_kubectls_order() {
        let none = ClientOptions::default();
        let flag = ClientOptions { kubeconfig: Some("/flag".into()), ..none.clone() };
        let context = ClientOptions { context: Some("lab".into()), ..none.clone() };
        let listed = ("KUBECONFIG", ":/a:/b");
        assert_eq!(chosen(&flag, &[listed, IN_POD, HOME]), "/flag");
        assert_eq!(chosen(&none, &[listed, IN_POD, HOME]), "/a /b");
        assert_eq!(chosen(&none, &[("KUBECONFIG", ""), IN_POD, HOME]), "in-cluster");
        assert_eq!(chosen(&context, &[IN_POD, HOME]), "/root/.kube/config");
        assert_eq!(chosen(&none, &[HOME]), "/root/.kube/config");
        assert!(chosen(&none, &[]).contains("--kubeconfig"));
    }

    #[tokio::test]
    async fn errors_name_missing_files() {
        let options =
            ClientOptions { kubeconfig: Some("/no/such/file".into()), ..Default::default() };
        let error = connect(&options, None).await.err().expect("the file is missing").to_string();
        assert!(error.contains("/no/such/file") && error.contains("--kubeconfig"), "{error}");
        let files = vec![PathBuf::from("/no/a"), PathBuf::from("/no/b")];
        let error = read_files(Way::Direct, files, None)
            .await
            .expect_err("both files are missing")
            .to_string();
        assert!(error.contains("/no/a, /no/b"), "{error}");
    }

    /// Each message has one cause and one cure.
    #[tokio::test]
    async fn errors_of_a_kubeconfig_name_file_cause_and_cure_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        let shown = file.display().to_string();
        let message = async |context: Option<&str>| {
            let options = ClientOptions {
                kubeconfig: Some(file.clone()),
                context: context.map(str::to_owned),
                ..ClientOptions::default()
            };
            let error = connect(&options, None).await.err().expect("it is not usable");
            crate::error_chain(&error).replace(&shown, "FILE")
        };
        let missing = "kubeconfig FILE does not exist; pass --kubeconfig or set KUBECONFIG";
        assert_eq!(message(None).await, missing);
        std::fs::write(&file, "contexts: [").unwrap();
        let broken = message(None).await;
        assert!(broken.starts_with("kubeconfig FILE is not valid: line 1 column"), "{broken}");
        assert_eq!(broken.lines().count(), 1, "{broken}");
        let contexts = "contexts: [{name: a, context: {cluster: c}}, {name: b}]\n";
        std::fs::write(&file, contexts).unwrap();
        let none = "kubeconfig FILE sets no current context; pass --context with one of: a, b";
        assert_eq!(message(None).await, none);
        let other = "kubeconfig FILE has no context x; pass --context with one of: a, b";
        assert_eq!(message(Some("x")).await, other);
    }
}
