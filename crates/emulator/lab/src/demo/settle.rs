//! Waits until every proxy has applied the predicted choice, so that the measurement shows the policy
//! and not the transition.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use nearhop_core::world::Settings;
use serde_json::Value;

use super::predict::{Prediction, predict, read_choice};
use crate::LabError;
use crate::cluster::{Cluster, wait_for};
use crate::lab::Lab;
use crate::spec::PROXY_ADMIN;

pub(super) async fn settle(
    lab: &Lab,
    cluster: &Cluster,
    namespace: &str,
    service: &str,
) -> Result<Prediction, LabError> {
    wait_for("proxies", || async {
        let prediction = predict(cluster, Settings::default(), namespace, service).await?;
        let mut behind = Vec::new();
        for (node, wanted) in &prediction.choices {
            let answer = ask_proxy(lab, node, &format!("/debug/services/{namespace}/{service}"));
            if answer.ok().and_then(|answer| read_choice(&answer)).as_ref() != Some(wanted) {
                behind.push(node.clone());
            }
        }
        Ok(if behind.is_empty() { Ok(prediction) } else { Err(behind) })
    })
    .await
}

/// Asks a proxy, which listens on its node's loopback only.
fn ask_proxy(lab: &Lab, node: &str, path: &str) -> io::Result<Value> {
    let namespace = lab.world().node(node).map_err(io::Error::other)?;
    let text = namespace.run(|| -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", PROXY_ADMIN))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(io::Error::other)
}
