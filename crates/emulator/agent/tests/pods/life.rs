//! The lifecycle of Pods: probes, restarts, termination, and failures of agent and API server.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::socket::exec;
use crate::world::{LONG, Test, World, condition, get};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("three_pods_start_in_parallel", || Box::pin(three_pods())),
    ("readiness_follows_the_probe", || Box::pin(readiness())),
    ("a_crashing_container_is_restarted_with_back_off", || Box::pin(a_crash())),
    ("a_failed_liveness_probe_restarts_the_container", || Box::pin(not_alive())),
    ("a_hanging_probe_leaves_no_processes", || Box::pin(a_probe_hangs())),
    ("a_finished_pod_stays_finished", || Box::pin(done())),
    ("a_terminating_pod_keeps_serving", || Box::pin(ends())),
    ("a_forced_deletion_is_immediate", || Box::pin(forced())),
    ("a_killed_agent_leaves_no_processes", || Box::pin(killed())),
    ("pods_run_without_the_api_server", || Box::pin(without_api())),
];

fn sh(script: &str) -> Value {
    json!({ "containers": [{ "name": "c", "image": "busybox", "command": ["/bin/sh", "-c", script] }] })
}

fn first(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

async fn three_pods() {
    let world = World::start().await;
    world.create("warm", sh("exec sleep 1000")).await;
    world.ready("warm").await;
    let began = Instant::now();
    for name in ["a", "b", "c"] {
        world.create(name, sh("exec sleep 1000")).await;
    }
    let mut addresses = Vec::new();
    for name in ["a", "b", "c"] {
        addresses.push(world.ready(name).await["status"]["podIP"].clone());
    }
    // Printed, not asserted: the machine may be busy.
    println!("three pods were ready after {} ms", began.elapsed().as_millis());
    addresses.sort_by_key(ToString::to_string);
    assert_eq!(addresses, ["10.244.1.2", "10.244.1.3", "10.244.1.4"]);
}

async fn readiness() {
    let world = World::start().await;
    let mut spec = sh("exec sleep 1000");
    spec["containers"][0]["readinessProbe"] = json!({
        "exec": { "command": ["test", "-e", "/tmp/ready"] },
        "periodSeconds": 1, "failureThreshold": 1,
    });
    world.create("probed", spec).await;
    world.until("probed", "running", |pod| first(pod)["state"]["running"].is_object()).await;
    let set =
        |command: &'static [&'static str]| exec("probed", "c", "v5.channel.k8s.io", command, None);
    let pod = world.until("probed", "asked", |pod| condition(pod, "Ready") == "False").await;
    assert_eq!(first(&pod)["ready"], false);
    set(&["touch", "/tmp/ready"]).await;
    world.ready("probed").await;
    set(&["rm", "/tmp/ready"]).await;
    let pod = world.until("probed", "not ready", |pod| condition(pod, "Ready") == "False").await;
    let all = pod["status"]["conditions"].as_array().unwrap();
    let ready = all.iter().find(|it| it["type"] == "Ready").unwrap();
    assert_eq!(ready["message"], "containers with unready status: [c]");
    assert!(world.event("probed", "Unhealthy").await.starts_with("Readiness probe failed"));
    set(&["touch", "/tmp/ready"]).await;
    let pod = world.ready("probed").await;
    let all = pod["status"]["conditions"].as_array().unwrap();
    let ready = all.iter().find(|it| it["type"] == "Ready").unwrap();
    assert!(ready.get("message").is_none(), "the old message remains: {ready}");
}

async fn a_crash() {
    let world = World::start().await;
    world.create("crash", sh("exit 3")).await;
    let waits = |pod: &Value| first(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let pod = world.until("crash", "waiting", waits).await;
    assert_eq!(first(&pod)["restartCount"], 1, "the first restart has no back-off");
    assert_eq!(first(&pod)["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(first(&pod)["lastState"]["terminated"]["reason"], "Error");
    assert!(world.event("crash", "BackOff").await.contains("back-off 10s"));
    world.delete("crash", 30).await;
    world.gone("crash").await;
}

async fn not_alive() {
    let world = World::start().await;
    let mut spec = sh("trap 'exit 0' TERM; touch /tmp/alive; while :; do sleep 0.05; done");
    spec["containers"][0]["livenessProbe"] = json!({
        "exec": { "command": ["test", "-e", "/tmp/alive"] },
        "initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 1,
    });
    world.create("beats", spec).await;
    world.ready("beats").await;
    exec("beats", "c", "v5.channel.k8s.io", &["rm", "/tmp/alive"], None).await;
    let pod = world.until("beats", "restarted", |pod| first(pod)["restartCount"] == 1).await;
    assert_eq!(first(&pod)["lastState"]["terminated"]["exitCode"], 0, "SIGTERM came first");
    assert!(world.event("beats", "Killing").await.contains("liveness"));
}

async fn a_probe_hangs() {
    let world = World::start().await;
    let mark = mark();
    let mut spec = sh("exec sleep 1000");
    spec["containers"][0]["readinessProbe"] = json!({
        "exec": { "command": ["sh", "-c", format!("sh -c 'sleep 1000; : {mark}'; true")] },
        "periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 1,
    });
    spec["containers"][0]["lifecycle"] = json!({ "preStop": {
        "exec": { "command": ["sh", "-c", "head -c 100000 /dev/zero; sleep 1000; true"] },
    } });
    world.create("hangs", spec).await;
    assert!(world.event("hangs", "Unhealthy").await.contains("timed out after 1 s"));
    // Between two probes no process of the first is left.
    none_left(&mark).await;
    world.delete("hangs", 1).await;
    world.gone("hangs").await;
}

async fn done() {
    let world = World::start().await;
    let mut spec = sh("echo worked; exit 0");
    spec["restartPolicy"] = "OnFailure".into();
    world.create("job", spec).await;
    let pod = world.until("job", "done", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(first(&pod)["state"]["terminated"]["reason"], "Completed");
    assert_eq!(condition(&pod, "Ready"), "False");
    world.log("job", "worked").await;
    world.delete("job", 30).await;
    world.gone("job").await;
}

async fn ends() {
    let world = World::start().await;
    let spec = json!({ "terminationGracePeriodSeconds": 30, "containers": [{
        "name": "c", "image": "x/agnhost:2", "args": ["netexec", "--delay-shutdown=2"],
        "readinessProbe": { "tcpSocket": { "port": 8080 }, "periodSeconds": 1 },
    }] });
    world.create("ends", spec).await;
    world.ready("ends").await;
    world.delete("ends", 30).await;
    let deadline = Instant::now() + LONG;
    // The container logs SIGTERM and still serves old and new connections.
    while get("10.244.1.1", 8080, "/readyz").await.as_deref() != Some("shutting down") {
        assert!(Instant::now() < deadline, "the container does not log SIGTERM");
    }
    assert_eq!(get("10.244.1.1", 8080, "/hostname").await.as_deref(), Some("ends"));
    let pod = serde_json::to_value(world.pods().get("ends").await.unwrap()).unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        condition(&pod, "Ready"),
        "True",
        "a terminating Pod stays ready, as with a kubelet"
    );
    world.gone("ends").await;
    assert_eq!(get("10.244.1.1", 8080, "/hostname").await, None);
}

async fn forced() {
    let world = World::start().await;
    let mark = mark();
    world
        .create("stubborn", sh(&format!("trap '' TERM; : {mark}; while :; do sleep 0.05; done")))
        .await;
    world.ready("stubborn").await;
    assert_eq!(processes(&mark).len(), 1);
    world.delete("stubborn", 0).await;
    none_left(&mark).await;
}

fn mark() -> String {
    format!("mark-{:032x}", rand::random::<u128>())
}

/// Processes whose command line contains this, without shims.
fn processes(mark: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .filter(|line| line.contains(mark))
        .collect()
}

async fn none_left(mark: &str) {
    let deadline = Instant::now() + LONG;
    while !processes(mark).is_empty() {
        assert!(Instant::now() < deadline, "left over: {:?}", processes(mark));
        sleep(Duration::from_millis(10)).await;
    }
}

async fn killed() {
    let mut world = World::start().await;
    let mark = mark();
    let script = format!("(while :; do : {mark}; sleep 0.05; done) & exec sleep 1000 # {mark}");
    world.create("orphan", sh(&script)).await;
    let before = world.ready("orphan").await;
    assert!(!processes(&mark).is_empty());
    world.kill_agent();
    none_left(&mark).await;
    world.start_agent();
    let again = |pod: &Value| {
        first(pod)["containerID"] != first(&before)["containerID"]
            && condition(pod, "Ready") == "True"
    };
    let pod = world.until("orphan", "started again", again).await;
    assert_eq!(first(&pod)["restartCount"], 1);
    assert!(!processes(&mark).is_empty());
}

async fn without_api() {
    let mut world = World::start().await;
    let mut spec = json!({ "containers": [{ "name": "c", "image": "nearhop/echo" }] });
    spec["containers"][0]["readinessProbe"] = json!({
        "exec": { "command": ["sh", "-c", "test ! -e /tmp/no || { touch /tmp/failed; false; }"] },
        "periodSeconds": 1, "failureThreshold": 1,
    });
    world.create("lasts", spec).await;
    let before = world.ready("lasts").await;
    let address = world.stop_api().await;
    assert_eq!(get("10.244.1.1", 8080, "/hostname").await.as_deref(), Some("lasts"));
    exec("lasts", "c", "v5.channel.k8s.io", &["touch", "/tmp/no"], None).await;
    let deadline = Instant::now() + LONG;
    let failed = || exec("lasts", "c", "v5.channel.k8s.io", &["test", "-e", "/tmp/failed"], None);
    while failed().await.status["status"] != "Success" {
        assert!(Instant::now() < deadline, "the probe does not fail");
    }
    world.start_api(address).await;
    let pod = world.until("lasts", "not ready", |pod| condition(pod, "Ready") == "False").await;
    assert_eq!(
        first(&pod)["containerID"],
        first(&before)["containerID"],
        "the container kept running"
    );
    world.create("later", sh("exec sleep 1000")).await;
    world.ready("later").await;
}
