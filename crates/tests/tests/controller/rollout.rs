//! Rolling updates, as the Deployment controller and kubelets do them: the number of writes, and the
//! hints that consumers see during the update.

mod simulate;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use nearhop_api::convert_json;
use nearhop_controller::Options;
use nearhop_core::Object;
use nearhop_core::model::{Endpoint, Slice};
use nearhop_tests::scene::{Scene, replace};
use serde_json::{Value, json};

use super::common::{ask_for_auto, count_endpoints, three_zones};
use simulate::{PodWatch, count_writes_one_by_one};

/// Replicas of the large rollout, and how many extra Pods it may have (25 %).
const REPLICAS: usize = 100;
const SURGE: usize = 25;

/// A Pod of a generation: its name, its address and its node.
struct Replica {
    name: String,
    ip: String,
    node: String,
}

impl Replica {
    /// Assigns nodes in turn; each generation starts with another node.
    fn new(generation: usize, number: usize, nodes: &[&str]) -> Self {
        Self {
            name: format!("web-v{generation}-{number:03}"),
            ip: format!("10.0.{generation}.{}", number + 1),
            node: nodes[(number + generation) % nodes.len()].to_owned(),
        }
    }

    /// Creates the Pod: bound, running, ready.
    async fn start(&self, scene: &Scene) -> Result<()> {
        scene.pending_pod(&self.name, &self.node, &json!({"app": "web"})).await?;
        scene.report_pod(&self.name, &self.ip, false).await?;
        scene.report_pod(&self.name, &self.ip, true).await
    }

    /// Deletes the Pod: terminating, not ready, removed.
    async fn end(&self, scene: &Scene) -> Result<()> {
        scene.terminate_pod(&self.name).await?;
        scene.report_pod(&self.name, &self.ip, false).await?;
        scene.remove_pod(&self.name).await
    }
}

/// Replaces one generation by the next, `SURGE` Pods at a time, each ready before its predecessor
/// ends.
async fn roll(scene: &Scene, nodes: &[&str]) -> Result<()> {
    for first in (0..REPLICAS).step_by(SURGE) {
        let replace = |number| async move {
            Replica::new(2, number, nodes).start(scene).await?;
            Replica::new(1, number, nodes).end(scene).await
        };
        try_join_all((first..first + SURGE).map(replace)).await?;
    }
    Ok(())
}

const NINE_NODES: [&str; 9] = ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"];

/// Rolls 100 Pods and compares the number of writes with what planning after every single change
/// would cost. Returns both numbers.
async fn roll_a_hundred(options: Options) -> Result<(usize, usize)> {
    let scene = Scene::new().await?;
    for node in NINE_NODES {
        scene.node(node, node.get(..1)).await?;
    }
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    for first in (0..REPLICAS).step_by(SURGE) {
        let old: Vec<Replica> =
            (first..first + SURGE).map(|number| Replica::new(1, number, &NINE_NODES)).collect();
        try_join_all(old.iter().map(|replica| replica.start(&scene))).await?;
    }
    let controller = scene.start(options).await?;
    scene.settled().await?;
    let before = scene.world().await?;
    let pods = PodWatch::open(&scene).await?;
    let mut writes = scene.count_writes().await?;
    roll(&scene, &NINE_NODES).await?;
    scene.settled().await?;
    let written = writes.catch_up().await;
    controller.stop().await?;
    assert_all_new(&scene.slices("web").await?);
    let simulated = count_writes_one_by_one(before, &scene.key("web"), pods.changes().await?);
    Ok((written, simulated))
}

/// Asserts that exactly the second generation is published, ready and hinted, in few slices.
fn assert_all_new(slices: &[Slice]) {
    assert_eq!(count_endpoints(slices), REPLICAS);
    assert!(slices.len() <= 2, "{} slices", slices.len());
    for endpoint in slices.iter().flat_map(|slice| &slice.endpoints) {
        let pod = endpoint.target.as_ref().map(|pod| pod.name.as_str()).unwrap_or_default();
        assert!(pod.starts_with("web-v2-"), "{pod}");
        assert!(endpoint.is_ready(), "{pod}");
        assert!(is_hinted_for_own_zone(endpoint), "{pod}");
    }
}

/// Whether an endpoint is hinted for its own zone, and only for that.
fn is_hinted_for_own_zone(endpoint: &Endpoint) -> bool {
    endpoint.zone.is_some() && endpoint.hint_zones().iter().eq(endpoint.zone.as_ref())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_a_hundred_costs_no_more_writes_than_planning_each_change() -> Result<()> {
    let (written, simulated) = roll_a_hundred(replace()).await?;
    assert!(written <= simulated, "{written} writes instead of {simulated}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_period_saves_most_writes_of_a_rollout() -> Result<()> {
    let options = Options { batch_period: Duration::from_millis(500), ..replace() };
    let (written, simulated) = roll_a_hundred(options).await?;
    assert!(written * 2 < simulated, "{written} writes instead of {simulated}");
    Ok(())
}

/// Rolls six Pods, waiting after every single step until it is published.
async fn roll_step_by_step(scene: &Scene) -> Result<()> {
    for number in 0..6 {
        let (new, old) =
            (Replica::new(2, number, &THREE_NODES), Replica::new(1, number, &THREE_NODES));
        scene.pending_pod(&new.name, &new.node, &json!({"app": "web"})).await?;
        scene.settled().await?;
        for ready in [false, true] {
            scene.report_pod(&new.name, &new.ip, ready).await?;
            scene.settled().await?;
        }
        scene.terminate_pod(&old.name).await?;
        scene.settled().await?;
        scene.report_pod(&old.name, &old.ip, false).await?;
        scene.settled().await?;
        scene.remove_pod(&old.name).await?;
        scene.settled().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_concurrency_only_planned_writes_happen() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    for number in 0..6 {
        Replica::new(1, number, &THREE_NODES).start(&scene).await?;
    }
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    let (before, pods) = (scene.world().await?, PodWatch::open(&scene).await?);
    let mut writes = scene.count_writes().await?;
    roll_step_by_step(&scene).await?;
    let written = writes.catch_up().await;
    controller.stop().await?;
    let simulated = count_writes_one_by_one(before, &scene.key("web"), pods.changes().await?);
    // A Pod is published when it has an address, and then each of its five steps is a write.
    assert_eq!((written, simulated), (30, 30));
    Ok(())
}

const THREE_NODES: [&str; 3] = ["n-a", "n-b", "n-c"];

/// Rolls nine Pods over three zones one after the other, in slices of four, and returns what was
/// published meanwhile: all slices of the Service after each write.
async fn states_of_a_small_rollout(policy: Policy) -> Result<Vec<Vec<Slice>>> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({})).await?;
    match policy {
        Policy::SameZone => {
            let spec = json!({"spec": {"trafficDistribution": "PreferSameZone"}});
            scene.patch_service("web", &spec).await?;
        }
        Policy::Auto => ask_for_auto(&scene, "web").await?,
    }
    for number in 0..9 {
        Replica::new(1, number, &THREE_NODES).start(&scene).await?;
    }
    let options = Options { max_endpoints_per_slice: 4, ..replace() };
    let mut scene = scene;
    scene.settings.max_endpoints_per_slice = 4;
    let controller = scene.start(options).await?;
    scene.settled().await?;
    let start = scene.slices("web").await?;
    let mut writes = scene.count_writes().await?;
    for number in 0..9 {
        Replica::new(2, number, &THREE_NODES).start(&scene).await?;
        Replica::new(1, number, &THREE_NODES).end(&scene).await?;
    }
    scene.settled().await?;
    writes.catch_up().await;
    controller.stop().await?;
    combine(start, writes.events)
}

#[derive(Clone, Copy)]
enum Policy {
    SameZone,
    Auto,
}

/// The slices at the start and after each of these events.
fn combine(start: Vec<Slice>, events: Vec<(String, Value)>) -> Result<Vec<Vec<Slice>>> {
    let mut now: BTreeMap<String, Slice> =
        start.iter().map(|slice| (slice.name.to_string(), slice.clone())).collect();
    let mut states = vec![start];
    for (kind, object) in events {
        let Some(Object::Slice(slice)) = convert_json(object.to_string().as_bytes()).0 else {
            anyhow::bail!("not a slice: {object}");
        };
        let name = slice.name.to_string();
        if kind == "DELETED" {
            now.remove(&name).context("an unknown slice was deleted")?;
        } else {
            now.insert(name, *slice);
        }
        states.push(now.values().cloned().collect());
    }
    Ok(states)
}

fn ready(state: &[Slice]) -> impl Iterator<Item = &Endpoint> {
    state.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.is_ready())
}

#[tokio::test(flavor = "multi_thread")]
async fn zone_hints_stay_during_a_rollout_with_same_zone() -> Result<()> {
    let states = states_of_a_small_rollout(Policy::SameZone).await?;
    assert!(states.len() > 9, "only {} states", states.len());
    for (i, state) in states.iter().enumerate() {
        let lost: Vec<&Endpoint> = ready(state).filter(|e| !is_hinted_for_own_zone(e)).collect();
        assert!(lost.is_empty(), "state {i}: {lost:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn zone_hints_stay_during_a_rollout_with_auto() -> Result<()> {
    let states = states_of_a_small_rollout(Policy::Auto).await?;
    assert!(states.len() > 9, "only {} states", states.len());
    for (i, state) in states.iter().enumerate() {
        let lost: Vec<&Endpoint> = ready(state).filter(|e| e.hint_zones().len() != 1).collect();
        assert!(lost.is_empty(), "state {i}: {lost:?}");
    }
    Ok(())
}
