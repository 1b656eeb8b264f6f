//! Prepares a new server with the state at the start of a recording, and makes the writes of other clients during it.
//!
//! `data/prepare.json` lists for each transcript which objects must exist before which exchange. Most entries refer to
//! recorded objects: the preparer creates them, changes them to the recorded state (status, managedFields, generation,
//! deletion mark) by ordinary requests, and learns their volatile values.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::names::Names;
use super::transcript::{Library, data};
use crate::http::{Answer, Request};
use crate::rest::{collection, item};
use crate::server::Server;

/// The preparation of one transcript.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Exchanges that are sent differently from the recording, by number.
    #[serde(default)]
    pub exchanges: BTreeMap<u64, Override>,
    /// Whether the controllers of a whole cluster ran.
    #[serde(default)]
    pub controllers: bool,
    /// Watches whose events come in no fixed order.
    #[serde(default)]
    pub unordered: Vec<u64>,
    /// Watches whose bookmarks are ignored: they depend on the time between requests.
    #[serde(default)]
    pub bookmarks: Vec<u64>,
    /// Steps before and during exchanges.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// How a request differs from the recording, which could not store the original.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Another path, taken literally.
    pub path: Option<String>,
    /// The body as it was sent, where JSON parsing lost something.
    pub text: Option<String>,
    /// A body that was too big to keep.
    pub repeat: Option<Repeat>,
    /// Another user.
    #[serde(rename = "as")]
    pub user: Option<String>,
}

/// A big body: `prefix`, `count` times `unit` with `separator` in between, `suffix`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    prefix: String,
    unit: String,
    count: usize,
    suffix: String,
    separator: String,
}

impl Repeat {
    /// The whole body.
    pub fn body(&self) -> String {
        let middle = vec![self.unit.as_str(); self.count].join(&self.separator);
        format!("{}{middle}{}", self.prefix, self.suffix)
    }
}

/// One step.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Done before this exchange.
    pub before: Option<u64>,
    /// Done while the watch of this exchange is open.
    pub during: Option<u64>,
    /// A recorded object that must exist in the recorded state.
    ensure: Option<String>,
    /// `alive`: the state before its deletion.
    #[serde(rename = "as")]
    state: Option<String>,
    /// JSON pointers to fields that the object did not have yet.
    #[serde(default)]
    without: Vec<String>,
    /// The version it had at that time.
    version: Option<String>,
    /// Any request, which must succeed.
    request: Option<StepRequest>,
    /// An order to the fault endpoint.
    fault: Option<Value>,
    /// A pause.
    #[serde(rename = "pauseMs")]
    pause_ms: Option<u64>,
}

/// A request of a step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRequest {
    method: String,
    path: String,
    body: Option<Value>,
    #[serde(rename = "type")]
    content_type: Option<String>,
}

/// Reads `data/prepare.json`.
pub fn read_plans() -> Result<BTreeMap<String, Plan>> {
    let text = fs::read_to_string(data().join("prepare.json"))?;
    serde_json::from_str(&text).context("prepare.json")
}

/// Carries out steps against one server.
pub struct Preparer<'a> {
    /// The server.
    pub server: &'a Server,
    /// The recordings that steps refer to.
    pub library: &'a Library,
}

impl Preparer<'_> {
    /// Carries out one step.
    pub async fn run(&self, step: &Step, names: &mut Names) -> Result<()> {
        if let Some(reference) = &step.ensure {
            self.ensure(step, reference, names)
                .await
                .with_context(|| format!("ensure {reference}"))?;
        }
        if let Some(request) = &step.request {
            let answer = self.request(request, names).await?;
            names.observe(&answer.json());
        }
        if let Some(order) = &step.fault {
            self.server.fault(order).await?;
        }
        if let Some(pause) = step.pause_ms {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    async fn request(&self, step: &StepRequest, names: &Names) -> Result<Answer> {
        let mut request = Request::new(&step.method, &step.path);
        if let Some(body) = &step.body {
            let content_type = step.content_type.as_deref().unwrap_or("application/json");
            let body = with_times(&names.document(body)).to_string();
            request = request.bytes(content_type, body);
        }
        let what = format!("{} {}", step.method, step.path);
        self.server.admin.send(request).await?.ok().context(what)
    }

    async fn ensure(&self, step: &Step, reference: &str, names: &mut Names) -> Result<()> {
        let mut recorded = self.library.object(reference)?;
        let version =
            recorded["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if step.state.is_none() && step.version.is_none() && names.knows_object(&version) {
            return Ok(());
        }
        for pointer in &step.without {
            remove(&mut recorded, pointer);
        }
        if step.state.as_deref() == Some("alive") {
            revive(&mut recorded);
        }
        let wanted = names.document(&recorded);
        let actual = if made_by_the_server(&wanted) {
            self.server.admin.get(&item(&wanted, "default")).await?.expect(200)?.json()
        } else {
            self.converge(&wanted).await?
        };
        if step.state.is_some() || step.version.is_some() {
            remove(&mut recorded, "/metadata/resourceVersion");
        }
        names.learn(&recorded, &actual);
        if let (Some(version), Some(actual)) =
            (&step.version, actual["metadata"]["resourceVersion"].as_str())
        {
            names.set_version(version, actual);
        }
        Ok(())
    }

    /// Changes an object to the wanted state with ordinary requests.
    async fn converge(&self, wanted: &Value) -> Result<Value> {
        let admin = &self.server.admin;
        let path = item(wanted, "default");
        let found = admin.get(&path).await?;
        let mut actual = match found.status {
            200 => found.json(),
            404 => self.create(wanted, &path).await?,
            _ => bail!("GET {path}: {}", found.text()),
        };
        let main = main_part(wanted);
        if main_part(&actual) != main {
            let mut body = main;
            for key in ["uid", "resourceVersion"] {
                body["metadata"][key] = actual["metadata"][key].clone();
            }
            actual =
                admin.put(&path, &body).await?.ok().context("bring to the recorded state")?.json();
        }
        let own_status = ["CustomResourceDefinition", "Namespace"].map(Value::from);
        if wanted.get("status").is_some_and(|s| *s != actual["status"])
            && !own_status.contains(&wanted["kind"])
        {
            actual["status"] = wanted["status"].clone();
            let status = format!("{path}/status");
            actual = admin.put(&status, &actual).await?.ok().context("status")?.json();
        }
        actual = self.restore_managers(wanted, actual, &path).await?;
        if wanted["metadata"]["deletionTimestamp"].is_string()
            && actual["metadata"]["deletionTimestamp"].is_null()
        {
            let grace = &wanted["metadata"]["deletionGracePeriodSeconds"];
            let options = json!({"gracePeriodSeconds": grace});
            admin.send(Request::new("DELETE", &path).json(&options)).await?.ok().context("mark")?;
            actual = admin.get(&path).await?.expect(200)?.json();
        }
        Ok(actual)
    }

    async fn create(&self, wanted: &Value, path: &str) -> Result<Value> {
        let admin = &self.server.admin;
        let mut body = main_part(wanted);
        let bumps = generations_to_go(wanted);
        if bumps > 0 {
            bump(&mut body, bumps);
        }
        if wanted["kind"] == "Node" {
            body["status"] = wanted["status"].clone();
        }
        let created = admin.post(&collection(wanted, "default"), &body).await?.expect(201)?;
        let mut actual = created.json();
        for round in (1..bumps).rev() {
            bump(&mut actual, round);
            actual = admin.put(path, &actual).await?.ok().context("generation")?.json();
        }
        if wanted["kind"] == "CustomResourceDefinition" {
            actual = self.established(path).await?;
        }
        Ok(actual)
    }

    async fn established(&self, path: &str) -> Result<Value> {
        for _ in 0..100 {
            let definition = self.server.admin.get(path).await?.expect(200)?.json();
            let conditions =
                definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return Ok(definition);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{path} was not established in time")
    }

    async fn restore_managers(&self, wanted: &Value, actual: Value, path: &str) -> Result<Value> {
        let managers = &wanted["metadata"]["managedFields"];
        if *managers == actual["metadata"]["managedFields"] {
            return Ok(actual);
        }
        let admin = &self.server.admin;
        let answer = if managers.is_null() {
            admin.merge(path, &json!({"metadata": {"managedFields": [{}]}})).await?
        } else {
            let patch =
                json!([{"op": "replace", "path": "/metadata/managedFields", "value": managers}]);
            admin.patch(path, "application/json-patch+json", &patch).await?
        };
        Ok(answer.ok().context("managedFields")?.json())
    }
}

/// Whether the server creates this object when it starts. Such objects are not changed.
fn made_by_the_server(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["kind"].as_str().unwrap_or_default() {
        "Namespace" => name == "default" || name.starts_with("kube-"),
        _ => name == "kubernetes" && object["metadata"]["namespace"] == "default",
    }
}

/// An object without the metadata that only the server writes, and without its status.
fn main_part(object: &Value) -> Value {
    let mut part = object.clone();
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        remove(&mut part, &format!("/metadata/{key}"));
    }
    remove(&mut part, "/status");
    part
}

/// Removes the marks of a deletion from an object.
fn revive(object: &mut Value) {
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        remove(object, &format!("/metadata/{key}"));
    }
    let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if finalizers.iter().any(|f| f == "foregroundDeletion" || f == "orphan") {
        remove(object, "/metadata/finalizers");
    }
    if object["kind"] == "Namespace" {
        object["status"] = json!({"phase": "Active"});
    }
}

fn remove(value: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap_or(("", pointer));
    if let Some(map) = value.pointer_mut(parent).and_then(Value::as_object_mut) {
        map.remove(key);
    }
}

/// How many times an object's generation must be increased after its creation.
fn generations_to_go(wanted: &Value) -> u64 {
    let generation = wanted["metadata"]["generation"].as_u64().unwrap_or(1);
    let by_deletion = u64::from(wanted["metadata"]["deletionTimestamp"].is_string());
    generation.saturating_sub(1 + by_deletion)
}

/// Changes a field that increases the generation; the change to the wanted state reverts the last one.
fn bump(object: &mut Value, round: u64) {
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            object["spec"]["minReadySeconds"] = (100 + round).into();
        }
        "EndpointSlice" => object["metadata"]["labels"]["bump"] = round.to_string().into(),
        "Pod" => object["spec"]["containers"][0]["image"] = format!("bump:{round}").into(),
        _ => object["spec"]["replicas"] = (round + 1).into(),
    }
}

/// Replaces `NOW` and `NOWMICRO` by the current time: the ages in Tables depend on it.
fn with_times(body: &Value) -> Value {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(now.as_micros()).unwrap_or_default();
    let Ok(now) = jiff::Timestamp::from_microsecond(micros) else { return body.clone() };
    let text = body.to_string();
    let text =
        text.replace("\"NOWMICRO\"", &now.strftime("\"%Y-%m-%dT%H:%M:%S.%6fZ\"").to_string());
    let text = text.replace("\"NOW\"", &now.strftime("\"%Y-%m-%dT%H:%M:%SZ\"").to_string());
    serde_json::from_str(&text).unwrap_or_else(|_| body.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preparation_step_names_an_exchange() {
        let library = Library::read().unwrap();
        for (name, plan) in read_plans().unwrap() {
            let transcript = library.transcripts.get(&name).expect(&name);
            for step in &plan.steps {
                let seq = step.before.or(step.during).expect("a step has `before` or `during`");
                let exchange = transcript.exchanges.iter().find(|e| e.seq == seq);
                let exchange = exchange.unwrap_or_else(|| panic!("{name} has no exchange {seq}"));
                assert!(step.during.is_none() || exchange.is_watch(), "{name}#{seq} is no watch");
                if let Some(reference) = &step.ensure {
                    library.object(reference).unwrap();
                }
            }
        }
    }

    #[test]
    fn times_are_filled_in() {
        let filled = with_times(&json!({"a": "NOW", "b": "NOWMICRO", "c": "NOWHERE"}));
        assert_eq!(filled["a"].as_str().unwrap().len(), 20);
        assert_eq!(filled["b"].as_str().unwrap().len(), 27);
        assert_eq!(filled["c"], "NOWHERE");
    }
}
