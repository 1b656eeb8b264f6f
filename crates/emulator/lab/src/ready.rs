//! Waits for a lab, for scripts.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use nearhop_core::world::Settings;
use nearhop_core::{Gates, ServiceKey};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::LabError;
use crate::cluster::{Awaited, Cluster, Pace, none_missing, wait_for_at};
use crate::control::{Answer, LabPhase, Request, Status, send};
use crate::demo::predict::{Prediction, predict, read_choice};
use crate::serve::missing_nodes;

/// How long a proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two looks at a lab; each lists Nodes, Pods and EndpointSlices.
const POLL: Duration = Duration::from_millis(250);

/// What to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The lab is up and all its nodes are ready.
    Ready,
    /// A Service has a ready endpoint, and the proxies of all nodes have programmed what the
    /// EndpointSlices say.
    Service(ServiceKey),
}

impl FromStr for Goal {
    type Err = String;

    /// Reads `ready`, `service/NAME` or `service/NAMESPACE/NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        match words[..] {
            ["ready"] => Ok(Self::Ready),
            ["service", name] if !name.is_empty() => {
                Ok(Self::Service(ServiceKey::new("default", name)))
            }
            ["service", namespace, name] if !name.is_empty() && !namespace.is_empty() => {
                Ok(Self::Service(ServiceKey::new(namespace, name)))
            }
            _ => Err("expected ready, service/NAME or service/NAMESPACE/NAME".to_owned()),
        }
    }
}

/// Waits until the lab in this directory has reached the goal.
/// Fails with what is missing after `limit`.
pub async fn wait_until(state: &Path, goal: &Goal, limit: Duration) -> Result<(), LabError> {
    let pace = Pace { limit, poll: POLL };
    match goal {
        Goal::Ready => wait_for_at(pace, "the lab is", || look_at_lab(state)).await,
        Goal::Service(key) => {
            let what = format!("Service {key} is");
            wait_for_at(pace, &what, || look_at_service(state, key)).await
        }
    }
}

async fn status_of(state: &Path) -> Result<Status, LabError> {
    match send(state, &Request::Status).await {
        Ok(Answer::Status(status)) => Ok(*status),
        Ok(_) => Err(LabError::NotReady("unexpected answer from the lab".to_owned())),
        Err(error) => Err(LabError::NotReady(format!("the lab does not answer ({error})"))),
    }
}

async fn look_at_lab(state: &Path) -> Result<Awaited<()>, LabError> {
    let status = status_of(state).await?;
    if status.phase == LabPhase::Starting {
        return Ok(Err(vec!["it is starting".to_owned()]));
    }
    let cluster = Cluster::connect(&status.kubeconfig).await?;
    let nodes = status.zones.values().flatten().map(String::as_str);
    let missing = missing_nodes(&cluster, nodes).await?;
    Ok(missing
        .map_err(|nodes| nodes.iter().map(|node| format!("node {node} is not ready")).collect()))
}

async fn look_at_service(state: &Path, key: &ServiceKey) -> Result<Awaited<()>, LabError> {
    let status = status_of(state).await?;
    let cluster = Cluster::connect(&status.kubeconfig).await?;
    let gates = Gates::parse(&status.feature_gates)
        .map_err(|error| LabError::NotReady(format!("feature gates: {error}")))?;
    let settings = Settings { gates, ..Settings::default() };
    let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
    let prediction = predict(&cluster, settings, namespace, name).await?;
    if !has_ready_endpoint(&cluster, key).await? {
        return Ok(Err(vec!["it has no ready endpoint".to_owned()]));
    }
    let behind = proxies_behind(&status, &prediction, key).await;
    Ok(none_missing(
        behind.iter().map(|node| format!("proxy/{node} has not programmed it")).collect(),
    ))
}

/// The nodes whose proxies have not programmed the predicted choice. A node of a joined cluster has
/// another proxy, and is not looked at.
pub(crate) async fn proxies_behind(
    status: &Status,
    prediction: &Prediction,
    key: &ServiceKey,
) -> Vec<String> {
    let mut behind = Vec::new();
    for (node, wanted) in &prediction.choices {
        let process = status.processes.get(&format!("proxy/{node}"));
        let Some(url) = process.and_then(|process| process.url.as_deref()) else { continue };
        let answer = get(url, &format!("/debug/services/{}/{}", key.namespace, key.name)).await;
        if answer.ok().and_then(|answer| read_choice(&answer)).as_ref() != Some(wanted) {
            behind.push(node.clone());
        }
    }
    behind
}

async fn has_ready_endpoint(cluster: &Cluster, key: &ServiceKey) -> Result<bool, LabError> {
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}%3D{}",
        key.namespace, "kubernetes.io%2Fservice-name", key.name
    );
    let slices = cluster.list(&path).await?;
    let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array());
    Ok(endpoints.flatten().any(|endpoint| endpoint["conditions"]["ready"] == true))
}

/// The JSON at a path below the URL of a process.
async fn get(url: &str, path: &str) -> std::io::Result<Value> {
    let rest = url.trim_start_matches("http://");
    let (address, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!("GET /{prefix}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    let text: std::io::Result<String> = timeout(PATIENCE, exchange).await?;
    let text = text?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        let service = |namespace, name| Ok(Goal::Service(ServiceKey::new(namespace, name)));
        assert_eq!("ready".parse(), Ok(Goal::Ready));
        assert_eq!("service/web".parse(), service("default", "web"));
        assert_eq!("service/shop/cart".parse(), service("shop", "cart"));
        for wrong in ["", "service", "service/", "service//x", "pod/x", "service/a/b/c"] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
    }
}
