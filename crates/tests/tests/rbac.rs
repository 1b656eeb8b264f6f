//! What the controller asks of an API server is exactly what `nearhop manifests` grants: no verb less, no verb more.
//!
//! The controller is driven through everything that makes it send a different kind of request, and each request is
//! recorded before it is sent.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::request::Parts;
use nearhop_api::rbac::Rule;
use nearhop_apiserver::Controllers;
use nearhop_controller::rbac::{CLUSTER_RULES, LEASE_RULES};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_tests::scene::{Controlled, PATIENCE, Scene, replace, start_recorded};
use nearhop_tests::server::{self, binary};
use serde_json::{Value, json};

/// Group, resource with subresource, verb.
type Right = (String, String, String);
type Used = Arc<Mutex<BTreeSet<Right>>>;

/// What a Kubernetes authorizer would be asked about a request.
fn right(parts: &Parts) -> Result<Right> {
    let path: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    let (group, rest) = match path.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => bail!("not a resource: {}", parts.uri),
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, named) = match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, subresource] => (format!("{resource}/{subresource}"), true),
        _ => bail!("not a resource: {}", parts.uri),
    };
    let query = parts.uri.query().unwrap_or_default();
    let watch = query.split('&').any(|part| matches!(part, "watch=1" | "watch=true"));
    let verb = match parts.method.as_str() {
        "GET" if watch => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if named => "delete",
        method => bail!("nobody grants {method} {}", parts.uri),
    };
    Ok((group.to_owned(), resource, verb.to_owned()))
}

fn rights(rules: &[Rule], verbs: impl Fn(&Rule) -> Vec<&'static str>) -> BTreeSet<Right> {
    let of = |rule: &Rule| -> Vec<Right> {
        let right = |verb: &str| (rule.group.to_owned(), rule.resource.to_owned(), verb.to_owned());
        verbs(rule).into_iter().map(right).collect()
    };
    rules.iter().flat_map(of).collect()
}

struct Recorded {
    scene: Scene,
    controller: Controlled,
    used: Used,
}

impl Recorded {
    /// A controller with a lease, on a server without garbage collection and, at first, without streaming lists.
    async fn new() -> Result<Option<Self>> {
        let bare = server::Options { controllers: Controllers::Bare, ..Default::default() };
        let Some(scene) = Scene::with(&bare).await? else { return Ok(None) };
        // As a server answers whose WatchList gate is off.
        let no_streaming = json!({
            "answers": [{"code": 422, "share": 1.0}], "path": "sendInitialEvents", "watches": true,
            "userAgent": "nearhop-controller",
        });
        scene.cluster.server.fault(&no_streaming).await?;
        let used = Used::default();
        let record = {
            let used = used.clone();
            move |parts: &Parts| {
                let asked = right(parts).unwrap_or_else(|error| {
                    (String::new(), format!("{error:#}"), parts.method.to_string())
                });
                used.lock().unwrap_or_else(PoisonError::into_inner).insert(asked);
            }
        };
        let mut options = replace();
        options.lease = Some(LeaseOptions::new(&scene.cluster.namespace, "rbac", "test"));
        let controller = start_recorded(&scene.cluster.server, options, record).await?;
        Ok(Some(Self { scene, controller, used }))
    }

    fn has(&self, group: &str, resource: &str, verb: &str) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.contains(&(group.to_owned(), resource.to_owned(), verb.to_owned()))
    }

    async fn until_used(&self, group: &str, resource: &str, verb: &str) -> Result<()> {
        let look = || async {
            Ok(self.has(group, resource, verb).then_some(()).ok_or("not yet".to_owned()))
        };
        self.scene.until(&format!("{verb} {resource}"), PATIENCE, look).await
    }

    /// Somebody else writes a slice between the controller's look at it and its write.
    async fn cause_conflict(&self) -> Result<()> {
        let slow = json!({"delayMs": 400, "userAgent": "nearhop-controller"});
        self.scene.cluster.server.fault(&slow).await?;
        for round in 0..20 {
            self.scene.report_pod("p", "10.1.0.1", round % 2 == 1).await?;
            tokio::time::sleep(Duration::from_millis(150)).await;
            for slice in self.scene.slices("web").await? {
                let path = format!("endpointslices/{}", slice.name);
                let path = self.scene.cluster.group("discovery.k8s.io/v1", &path);
                let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                self.scene.cluster.admin.merge(&path, &patch).await?.ok()?;
            }
            tokio::time::sleep(Duration::from_millis(800)).await;
            if self.has("discovery.k8s.io", "endpointslices", "get") {
                break;
            }
        }
        self.scene.cluster.server.fault(&json!({})).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_uses_what_it_is_granted_and_nothing_else() -> Result<()> {
    let Some(recorded) = Recorded::new().await? else { return Ok(()) };
    let scene = &recorded.scene;
    scene.node("n1", Some("a")).await?;
    // Asks for something, so that there are conditions; and for nonsense, so that there is an event.
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    let nonsense = json!({"metadata": {"annotations": {"nearhop.dev/topology-keys": "!"}}});
    scene.patch_service("web", &nonsense).await?;
    scene.pod("p", "n1", "10.1.0.1", "web").await?;
    recorded.until_used("discovery.k8s.io", "endpointslices", "create").await?;
    recorded.until_used("", "services/status", "patch").await?;
    recorded.until_used("", "events", "patch").await?;
    scene.settled().await?;
    recorded.cause_conflict().await?;
    scene.settled().await?;
    // Nobody collects garbage here: the controller asks whether the Service is gone, and deletes.
    scene.cluster.admin.delete(&scene.cluster.core("services/web")).await?.ok()?;
    recorded.until_used("", "services", "get").await?;
    recorded.until_used("discovery.k8s.io", "endpointslices", "delete").await?;
    scene.settled().await?;
    assert!(scene.slices("web").await?.is_empty());
    scene.cluster.server.fault(&json!({"dropWatches": true})).await?;
    for resource in ["namespaces", "nodes", "pods", "services"] {
        recorded.until_used("", resource, "watch").await?;
    }
    recorded.until_used("discovery.k8s.io", "endpointslices", "watch").await?;
    let used = recorded.used.clone();
    recorded.controller.stop().await?;

    let used = used.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let rules: Vec<Rule> = [CLUSTER_RULES, LEASE_RULES].concat();
    let asked = rights(&rules, |rule| rule.verbs.to_vec());
    let granted = rights(&rules, Rule::granted);
    let idle: Vec<_> = asked.difference(&used).collect();
    let missing: Vec<_> = used.difference(&granted).collect();
    assert!(missing.is_empty(), "used and not granted: {missing:?}");
    assert!(idle.is_empty(), "granted and never used: {idle:?}");
    assert_eq!(used, asked, "used by itself, although it is said to be implied only");
    Ok(())
}

/// What `nearhop manifests` prints.
fn manifests() -> Result<Vec<Value>> {
    let output = Command::new(binary()?).args(["manifests", "--namespace", "default"]).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout)?)?)
}

/// The rights in the rules of a role.
fn rights_of(role: &Value) -> BTreeSet<Right> {
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    rights.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    rights
}

#[test]
fn the_manifests_grant_what_the_rules_say() -> Result<()> {
    let documents = manifests()?;
    let find = |kind: &str| documents.iter().find(|d| d["kind"] == kind).context("missing");
    assert_eq!(rights_of(find("ClusterRole")?), rights(CLUSTER_RULES, Rule::granted));
    assert_eq!(rights_of(find("Role")?), rights(LEASE_RULES, Rule::granted));
    for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
        let (binding, role) = (find(binding)?, find(role)?);
        assert_eq!(binding["roleRef"]["kind"], role["kind"]);
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        let account = find("ServiceAccount")?;
        for field in ["name", "namespace"] {
            assert_eq!(binding["subjects"][0][field], account["metadata"][field]);
        }
    }
    assert_eq!(documents.len(), 5);
    Ok(())
}

#[tokio::test]
async fn a_server_takes_the_manifests() -> Result<()> {
    let Some(scene) = Scene::new().await? else { return Ok(()) };
    for document in manifests()? {
        let kind = document["kind"].as_str().unwrap_or_default();
        let group = document["apiVersion"].as_str().unwrap_or_default();
        let root = if group.contains('/') { "/apis" } else { "/api" };
        let plural = format!("{}s", kind.to_lowercase());
        let path = match document["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("{root}/{group}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{group}/{plural}"),
        };
        let answer = scene.cluster.admin.post(&format!("{path}?dryRun=All"), &document).await?;
        answer.expect(201).with_context(|| format!("{kind} at {path}"))?;
    }
    Ok(())
}
