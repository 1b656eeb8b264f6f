//! The requests of the controller, the proxy and the DNS server need exactly the rights that `nearhop manifests` grants.
//!
//! Each test causes every kind of request of one component, and records each request before it is sent.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::request::Parts;
use nearhop_api::locator::definition;
use nearhop_api::rbac::Rule;
use nearhop_apiserver::Controllers;
use nearhop_controller::rbac::{CLUSTER_RULES, LEASE_RULES};
use nearhop_core::{Gate, Gates};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_tests::scene::{RunningController, Scene, TIMEOUT, replace, start_recorded};
use nearhop_tests::server::{self, binary};
use serde_json::{Value, json};

/// Group, resource with subresource, verb.
type Right = (String, String, String);
type Used = Arc<Mutex<BTreeSet<Right>>>;

/// The right that a Kubernetes authorizer checks for a request.
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
        method => bail!("no rule covers {method} {}", parts.uri),
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

/// Records the right that each request needs.
fn recorder(used: &Used) -> impl Fn(&Parts) + Clone + Send + Sync + 'static {
    let used = used.clone();
    move |parts: &Parts| {
        let asked = right(parts).unwrap_or_else(|error| {
            (String::new(), format!("{error:#}"), parts.method.to_string())
        });
        used.lock().unwrap_or_else(PoisonError::into_inner).insert(asked);
    }
}

fn has(used: &Used, group: &str, resource: &str, verb: &str) -> bool {
    let used = used.lock().unwrap_or_else(PoisonError::into_inner);
    used.contains(&(group.to_owned(), resource.to_owned(), verb.to_owned()))
}

/// A fault: the server answers as if its WatchList gate were off.
fn without_streaming(user_agent: &str) -> Value {
    json!({
        "answers": [{"code": 422, "share": 1.0}], "path": "sendInitialEvents", "watches": true,
        "userAgent": user_agent,
    })
}

/// Asserts that only granted rights were used, and all of them.
fn assert_exact(used: &Used, rules: &[Rule]) {
    let used = used.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let asked = rights(rules, |rule| rule.verbs.to_vec());
    let granted = rights(rules, Rule::granted);
    let idle: Vec<_> = asked.difference(&used).collect();
    let missing: Vec<_> = used.difference(&granted).collect();
    assert!(missing.is_empty(), "used and not granted: {missing:?}");
    assert!(idle.is_empty(), "granted and never used: {idle:?}");
    assert_eq!(used, asked, "a right that should only be implied was used");
}

/// A controller whose requests are recorded.
struct Recorded {
    scene: Scene,
    controller: RunningController,
    used: Used,
}

impl Recorded {
    /// A controller with a lease, on a server without garbage collection and, at first, without streaming lists.
    async fn new() -> Result<Self> {
        let bare = server::Options { controllers: Controllers::Bare, ..Default::default() };
        let scene = Scene::with(&bare).await?;
        scene.cluster.server.fault(&without_streaming("nearhop-controller")).await?;
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        scene.cluster.admin.post(definitions, &definition()).await?.expect(201)?;
        let used = Used::default();
        let mut options = replace();
        options.gates = Gates::default().with(Gate::PodLocator);
        options.lease = Some(LeaseOptions::new(&scene.cluster.namespace, "rbac", "test"));
        let controller = start_recorded(&scene.cluster.server, options, recorder(&used)).await?;
        Ok(Self { scene, controller, used })
    }

    fn has(&self, group: &str, resource: &str, verb: &str) -> bool {
        has(&self.used, group, resource, verb)
    }

    async fn until_used(&self, group: &str, resource: &str, verb: &str) -> Result<()> {
        let look = || async {
            Ok(self.has(group, resource, verb).then_some(()).ok_or("not yet".to_owned()))
        };
        self.scene.until(&format!("{verb} {resource}"), TIMEOUT, look).await
    }

    /// Another client writes a slice between the controller's read and its write.
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
    let recorded = Recorded::new().await?;
    let scene = &recorded.scene;
    scene.node("n1", Some("a")).await?;
    // A valid setting, so that there are conditions, and an invalid one, so that there is an event.
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    let invalid = json!({"metadata": {"annotations": {"nearhop.dev/topology-keys": "!"}}});
    scene.patch_service("web", &invalid).await?;
    scene.pod("p", "n1", "10.1.0.1", "web").await?;
    recorded.until_used("discovery.k8s.io", "endpointslices", "create").await?;
    recorded.until_used("nearhop.dev", "podlocators", "create").await?;
    scene.move_node("n1", Some("b")).await?;
    recorded.until_used("nearhop.dev", "podlocators", "patch").await?;
    recorded.until_used("", "services/status", "patch").await?;
    recorded.until_used("", "events", "create").await?;
    scene.settled().await?;
    recorded.cause_conflict().await?;
    scene.settled().await?;
    // There is no garbage collector here: the controller checks that the Service is gone, and deletes its slices.
    scene.cluster.admin.delete(&scene.cluster.core("services/web")).await?.ok()?;
    recorded.until_used("", "services", "get").await?;
    recorded.until_used("discovery.k8s.io", "endpointslices", "delete").await?;
    scene.remove_pod("p").await?;
    recorded.until_used("nearhop.dev", "podlocators", "delete").await?;
    scene.settled().await?;
    assert!(scene.slices("web").await?.is_empty());
    scene.cluster.server.fault(&json!({"dropWatches": true})).await?;
    for resource in ["namespaces", "nodes", "pods", "services"] {
        recorded.until_used("", resource, "watch").await?;
    }
    recorded.until_used("discovery.k8s.io", "endpointslices", "watch").await?;
    recorded.until_used("nearhop.dev", "podlocators", "watch").await?;
    let used = recorded.used.clone();
    recorded.controller.stop().await?;

    assert_exact(&used, &[CLUSTER_RULES, LEASE_RULES].concat());
    Ok(())
}

#[cfg(target_os = "linux")]
mod proxy {
    use nearhop_core::Name;
    use nearhop_net::sandbox;
    use nearhop_proxy::health::SharedHealth;
    use nearhop_proxy::metrics::ProxyMetrics;
    use nearhop_proxy::options::Options;
    use nearhop_proxy::run::{Deps, run};
    use nearhop_proxy::{Lock, ProxyError, rbac};
    use nearhop_runtime::client::{ClientOptions, connect_recorded};
    use nearhop_runtime::health::{Health, Purpose};
    use nearhop_runtime::metrics::Metrics;
    use nearhop_runtime::shutdown::{Shutdown, Trigger};
    use tokio::task::JoinHandle;

    use super::*;

    /// A proxy in this process whose requests are recorded.
    async fn start(
        scene: &Scene,
        used: &Used,
    ) -> Result<(Trigger, JoinHandle<Result<(), ProxyError>>)> {
        let (options, metrics) = (Options::new("n1"), Metrics::new());
        let client = ClientOptions {
            kubeconfig: Some(scene.cluster.server.kubeconfig.clone()),
            context: None,
            user_agent: "nearhop-proxy/test".to_owned(),
        };
        let (trigger, shutdown) = Shutdown::manual();
        // No requests to the admin port.
        let (_, questions) = tokio::sync::mpsc::channel(1);
        let deps = Deps {
            lock: Lock::take(&Name::from("nearhop"))?,
            client: connect_recorded(&client, Some(&metrics), recorder(used)).await?,
            metrics: ProxyMetrics::new(&metrics, &options.families),
            health: SharedHealth::new(options.sync_period),
            synced: Health::new().check("first-sync", Purpose::Ready),
            questions,
            sysctls: None,
            shutdown,
        };
        Ok((trigger, tokio::spawn(run(options, deps))))
    }

    /// Makes the proxy list, watch, and watch again after the watches are dropped.
    async fn drive(scene: &Scene, used: &Used) -> Result<()> {
        scene.node("n1", Some("a")).await?;
        scene.service("web", json!({})).await?;
        scene.cluster.server.fault(&without_streaming("nearhop-proxy")).await?;
        let (trigger, proxy) = start(scene, used).await?;
        let until_used = async |group: &str, resource: &str, verb: &str| {
            let look = || async {
                Ok(has(used, group, resource, verb).then_some(()).ok_or("not yet".to_owned()))
            };
            scene.until(&format!("{verb} {resource}"), TIMEOUT, look).await
        };
        until_used("", "events", "create").await?;
        let kinds = [
            ("", "nodes"),
            ("", "services"),
            ("discovery.k8s.io", "endpointslices"),
            ("networking.k8s.io", "servicecidrs"),
        ];
        for (group, resource) in kinds {
            until_used(group, resource, "list").await?;
            until_used(group, resource, "watch").await?;
        }
        let before = std::mem::take(&mut *used.lock().unwrap_or_else(PoisonError::into_inner));
        scene.cluster.server.fault(&json!({"dropWatches": true})).await?;
        for (group, resource) in kinds {
            until_used(group, resource, "watch").await?;
        }
        used.lock().unwrap_or_else(PoisonError::into_inner).extend(before);
        trigger.request();
        Ok(proxy.await??)
    }

    #[test]
    fn it_uses_what_it_is_granted_and_nothing_else() {
        sandbox::run("proxy::it_uses_what_it_is_granted_and_nothing_else", || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let driven = runtime.block_on(async {
                let bare = server::Options { controllers: Controllers::Bare, ..Default::default() };
                let scene = Scene::with(&bare).await?;
                let used = Used::default();
                drive(&scene, &used).await?;
                assert_exact(&used, rbac::CLUSTER_RULES);
                anyhow::Ok(())
            });
            driven.unwrap_or_else(|error| panic!("{error:#}"));
        });
    }
}

mod dns {
    use nearhop_core::answer::{Config, Zone};
    use nearhop_core::{Gate, Gates};
    use nearhop_dns::metrics::DnsMetrics;
    use nearhop_dns::options::{Listen, Options};
    use nearhop_dns::rbac;
    use nearhop_dns::readiness::Readiness;
    use nearhop_dns::run::{Deps, run};
    use nearhop_runtime::client::{ClientOptions, connect_recorded};
    use nearhop_runtime::metrics::Metrics;
    use nearhop_runtime::shutdown::Shutdown;

    use super::*;

    /// Makes the DNS server list and watch; it never writes.
    async fn drive(scene: &Scene, used: &Used) -> Result<()> {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definition = nearhop_api::locator::definition();
        scene.cluster.admin.post(definitions, &definition).await?.expect(201)?;
        scene.cluster.server.fault(&without_streaming("nearhop-dns")).await?;
        let zone = Zone::parse("cluster.local").expect("a name");
        let options = Options {
            listen: Listen::At(vec!["127.0.0.1:0".parse()?]),
            gates: Gates::default().with(Gate::PodLocator),
            ..Options::new(Config::new(zone))
        };
        let client = ClientOptions {
            kubeconfig: Some(scene.cluster.server.kubeconfig.clone()),
            context: None,
            user_agent: "nearhop-dns/test".to_owned(),
        };
        let metrics = Metrics::new();
        let (trigger, shutdown) = Shutdown::manual();
        let deps = Deps {
            client: connect_recorded(&client, Some(&metrics), recorder(used)).await?,
            metrics: DnsMetrics::new(&metrics, "dns://test"),
            readiness: Readiness::new(options.max_staleness),
            shutdown,
            on_listening: Box::new(|_| {}),
        };
        let server = tokio::spawn(run(options, deps));
        for rule in rbac::CLUSTER_RULES {
            for verb in rule.granted() {
                let what = format!("{verb} {}", rule.resource);
                let look = || async {
                    let there = has(used, rule.group, rule.resource, verb);
                    Ok(there.then_some(()).ok_or("not yet".to_owned()))
                };
                scene.until(&what, TIMEOUT, look).await?;
            }
        }
        trigger.request();
        Ok(server.await??)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_uses_what_it_is_granted_and_nothing_else() -> Result<()> {
        let scene = Scene::new().await?;
        let used = Used::default();
        drive(&scene, &used).await?;
        assert_exact(&used, rbac::CLUSTER_RULES);
        Ok(())
    }
}

/// The objects that `nearhop manifests` prints.
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
    let find = |kind: &str, name: &str| {
        let is = |d: &&Value| d["kind"] == kind && d["metadata"]["name"] == name;
        documents.iter().find(is).with_context(|| format!("no {kind} {name}"))
    };
    let (controller, proxy) = ("nearhop-controller", "nearhop-proxy");
    let of = |kind: &str, name: &str| Ok::<_, anyhow::Error>(rights_of(find(kind, name)?));
    assert_eq!(of("ClusterRole", controller)?, rights(CLUSTER_RULES, Rule::granted));
    assert_eq!(of("Role", controller)?, rights(LEASE_RULES, Rule::granted));
    let proxys = rights(nearhop_proxy::rbac::CLUSTER_RULES, Rule::granted);
    assert_eq!(of("ClusterRole", proxy)?, proxys);
    let names = rights(nearhop_dns::rbac::CLUSTER_RULES, Rule::granted);
    assert_eq!(of("ClusterRole", "nearhop-dns")?, names);
    for (name, role) in [(controller, "ClusterRole"), (controller, "Role"), (proxy, "ClusterRole")]
    {
        let (binding, role) = (find(&format!("{role}Binding"), name)?, find(role, name)?);
        assert_eq!(binding["roleRef"]["kind"], role["kind"]);
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        let account = find("ServiceAccount", name)?;
        for field in ["name", "namespace"] {
            assert_eq!(binding["subjects"][0][field], account["metadata"][field]);
        }
    }
    assert_eq!(documents[0], definition(), "the definition comes before the roles for it");
    assert_eq!(documents.len(), 12);
    Ok(())
}

#[tokio::test]
async fn the_api_server_accepts_the_manifests() -> Result<()> {
    let scene = Scene::new().await?;
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
