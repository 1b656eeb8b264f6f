//! The commands of a running lab, as a user types them.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{Lab, Room, TIMEOUT, command};
use nearhop_tests::oracle;
use serde_json::{Value, json};

use crate::endings::labs_in;

const CONFIG: &str = "\
# Two zones of two regions, and a Service of each kind of port.
node n1 zone=east region=eu cpu=8 rack=r1
node n2 zone=west region=us cpu=2
service shop/cart port=http:80->8080 port=echo:81->8081/udp type=NodePort traffic-distribution=PreferSameZone
pod shop/cart-0 for=cart on=n1
pod shop/cart-1 for=cart on=n2
pod shop/broken for=cart on=n2 notready
";

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A lab from a file: `drive` from all kinds of clients, `exec`, logs, `fault`, `down`.
#[test]
fn a_lab_from_a_file_runs_all_commands() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let config = scratch.path().join("lab.conf");
        std::fs::write(&config, CONFIG)?;
        let lab = Lab::up(&["--config", config.to_str().context("the path is not UTF-8")?])?;

        let status = lab.text(&["lab", "status"])?;
        ensure!(status.contains("is up") && status.contains("east        n1"), "{status}");

        let room = Room::new(&lab.kubeconfig).await?;
        let wanted = json!({"east": {"east": 100}, "west": {"west": 100}});
        // Pods are ready a moment before the last proxy has their endpoints.
        let report = room.until("each zone to serve itself", TIMEOUT, || async {
            let report = lab.drive(&["shop/cart", "-n", "200"])?;
            Ok(if report["matrix"] == wanted { Ok(report) } else { Err(report.to_string()) })
        });
        let report = report.await?;
        ensure!(report["latency"]["p50Us"].as_u64() > Some(0), "{report}");

        let udp = lab.drive(&["shop/cart:echo", "--udp", "--from", "zone/west", "-n", "50"])?;
        ensure!(udp["pods"]["cart-1"]["answers"] == 50, "{udp}");
        let six = lab.drive(&["shop/cart", "--ipv6", "--from", "node/n1", "-n", "50"])?;
        ensure!(six["pods"]["cart-0"]["answers"] == 50, "{six}");
        let outside = lab.drive(&["shop/cart", "--from", "external", "-n", "100"])?;
        ensure!(
            outside["answered"] == 100 && outside["pods"].as_object().is_some_and(|p| p.len() == 2),
            "{outside}"
        );
        let named = lab.drive(&["shop/cart", "--dns", "--from", "pod/cart-1", "-n", "50"])?;
        ensure!(named["pods"]["cart-1"]["answers"] == 50, "{named}");
        let named = lab.drive(&["shop/cart", "--dns", "-n", "100"])?;
        ensure!(named["matrix"] == json!({"east": {"east": 50}, "west": {"west": 50}}), "{named}");

        exec(&lab)?;
        refusals(&lab)?;
        logs_by_kubectl(&lab)?;

        lab.fault(&["cut", "node/n2"])?;
        let status = lab.text(&["lab", "status"])?;
        ensure!(status.contains("cut off     node/n2"), "{status}");
        lab.fault(&["heal", "all"])?;
        lab.fault(&["pause", "controller"])?;
        ensure!(lab.text(&["lab", "status"])?.contains("controller           paused"));
        lab.fault(&["resume", "controller"])?;

        let runtime = lab.runtime_dir().to_owned();
        lab.text(&["lab", "down"])?;
        ensure!(labs_in(&runtime)?.is_empty(), "{:?}", labs_in(&runtime)?);
        ensure!(lab.wait(std::time::Duration::from_secs(10))?.success());
        Ok(())
    });
}

fn exec(lab: &Lab) -> Result<()> {
    let hostname = lab.text(&["lab", "exec", "shop/cart-1", "--", "hostname"])?;
    ensure!(hostname.trim() == "cart-1", "{hostname}");
    let failed =
        lab.run(&["lab", "exec", "shop/cart-1", "--", "/bin/sh", "-c", "echo no >&2; exit 7"])?;
    ensure!(failed.status.code() == Some(7) && failed.stderr.starts_with(b"no"), "{failed:?}");
    let found = lab.text(&["lab", "exec", "shop/cart-1", "--", "getent", "hosts", "cart"])?;
    ensure!(found.contains("cart.shop.svc.cluster.local"), "{found}");
    Ok(())
}

/// Errors name the missing object or the allowed values.
fn refusals(lab: &Lab) -> Result<()> {
    let cases: [(&[&str], &str); 9] = [
        (&["drive", "shop/absent"], "absent"),
        (&["drive", "shop/cart:443"], "no TCP port 443"),
        (&["drive", "shop/cart", "--from", "zone/north"], "it has east, west"),
        (&["drive", "shop/cart", "--from", "pod/absent"], "absent"),
        (&["drive", "shop/cart", "--dns", "--from", "external"], "omit --dns"),
        (&["fault", "kill", "proxy/n9"], "proxy/n1"),
        (&["fault", "cut", "rack/r1"], "node/NAME or zone/NAME"),
        (&["exec", "shop/absent", "--", "true"], "absent"),
        (&["exec", "n1", "--", "true"], "lab exec node/n1"),
    ];
    for (args, wanted) in cases {
        let output = lab.run(&[&["lab"], args].concat())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
        ensure!(said.contains(wanted), "{args:?}: {said}");
    }
    Ok(())
}

/// Stock kubectl, if it is installed.
fn logs_by_kubectl(lab: &Lab) -> Result<()> {
    let kubectl = |args: &[&str]| {
        Command::new("kubectl").env("KUBECONFIG", &lab.kubeconfig).args(args).output()
    };
    let Ok(nodes) = kubectl(&["get", "nodes", "-o", "name"]) else {
        skip("kubectl is not installed");
        return Ok(());
    };
    ensure!(nodes.stdout == b"node/n1\nnode/n2\n", "{nodes:?}");
    let done =
        kubectl(&["-n", "shop", "exec", "cart-0", "--", "/bin/sh", "-c", "hostname; exit 3"])?;
    ensure!(done.stdout == b"cart-0\n" && done.status.code() == Some(3), "{done:?}");
    let loud = ["-n", "shop", "run", "loud", "--image=none", "--restart=Never", "--command", "--"];
    let loud = kubectl(&[&loud[..], &["/bin/sh", "-c", "seq 1 5"]].concat())?;
    ensure!(loud.status.success(), "{loud:?}");
    let ready = ["-n", "shop", "wait", "pod/loud", "--for=jsonpath={.status.phase}=Succeeded"];
    let waited = kubectl(&ready)?;
    ensure!(waited.status.success(), "{waited:?}");
    let tail = kubectl(&["-n", "shop", "logs", "loud", "--tail=2", "-f"])?;
    ensure!(tail.stdout == b"4\n5\n", "{tail:?}");
    Ok(())
}

/// With `--data-dir`, objects survive a restart, and their Pods run again.
#[test]
fn objects_survive_a_restart() {
    crate::run(async {
        let data = tempfile::tempdir()?;
        let args = [
            "--zones",
            "1",
            "--nodes-per-zone",
            "1",
            "--data-dir",
            data.path().to_str().context("the path is not UTF-8")?,
        ];
        let lab = Lab::up(&args)?;
        let room = Room::new(&lab.kubeconfig).await?;
        room.server("kept", "node-a1", "kept", &["netexec"]).await?;
        room.until_ready(&["kept"]).await?;
        let namespace = room.namespace.clone();
        drop(lab);

        let lab = Lab::up(&args)?;
        let pod = format!("{namespace}/kept");
        let hostname = until_exec(&lab, &pod).await?;
        ensure!(hostname.trim() == "kept", "{hostname}");
        Ok(())
    });
}

/// Waits until a Pod runs; returns its host name.
async fn until_exec(lab: &Lab, pod: &str) -> Result<String> {
    let room = Room::new(&lab.kubeconfig).await?;
    room.until(&format!("{pod} to run again"), TIMEOUT, || async {
        Ok(Ok(lab.text(&["lab", "exec", pod, "--", "hostname"])?))
    })
    .await
}

/// With `--kubeconfig`, a lab's nodes join an existing cluster, which has its own controllers.
#[test]
fn a_lab_joins_a_cluster() {
    crate::run(async {
        let cluster = Lab::up(&["--zones", "1", "--nodes-per-zone", "1"])?;
        let config = tempfile::NamedTempFile::new()?;
        std::fs::write(config.path(), "node far-1 zone=far\n")?;
        let files = [config.path(), cluster.kubeconfig.as_path()];
        let [config, kubeconfig] = files.map(|path| path.to_str().unwrap_or_default());
        let lab = Lab::up(&["--config", config, "--kubeconfig", kubeconfig, "--no-taint"])?;
        let status: Value = serde_json::from_str(&lab.text(&["lab", "status", "-o", "json"])?)?;
        let processes = status["processes"].as_object().cloned().unwrap_or_default();
        let names: Vec<&str> = processes.keys().map(String::as_str).collect();
        ensure!(names == ["agent/far-1", "dns/far-1", "proxy/far-1"], "{names:?}");

        // A second Node with the same name would have two agents.
        let taken =
            ["lab", "up", "--zones", "1", "--nodes-per-zone", "1", "--kubeconfig", kubeconfig];
        let taken = lab.run(&taken)?;
        let said = String::from_utf8_lossy(&taken.stderr).into_owned();
        ensure!(taken.status.code() == Some(2) && said.contains("a live node `node-a1`"), "{said}");

        let room = Room::new(&cluster.kubeconfig).await?;
        let place = json!({"topology.kubernetes.io/zone": "far"});
        room.create(&crate::rollout::deployment("web", &place, 2, crate::rollout::Gap::None))
            .await?;
        crate::rollout::until_rolled(&room, "web").await?;
        let pods = room.pods_of("web").await?;
        ensure!(pods.iter().all(|pod| text(&pod["spec"]["nodeName"]) == "far-1"), "{pods:?}");

        // The file of this lab has no Pods of the cluster's own nodes.
        room.server("elsewhere", "node-a1", "x", &["netexec"]).await?;
        let exported = lab.text(&["lab", "export"])?;
        let left_out = "/elsewhere: its node node-a1 is not of the lab\n";
        ensure!(exported.contains(left_out) && exported.contains(" on=far-1,far-1"), "{exported}");
        std::fs::write(config, exported)?;
        let valid = lab.text(&["lab", "check", config])?;
        ensure!(valid.contains(": valid: 1 node in 1 zone"), "{valid}");
        Ok(())
    });
}

/// The demo reports that all predictions are met. A lab runs on this machine, so HTTP proxy variables
/// have no effect on it, even invalid ones.
#[test]
fn the_demo_meets_its_predictions_and_ignores_http_proxies() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let output = command(scratch.path())?
            .args(["demo", "--connections", "3000", "-o", "json"])
            .envs([("HTTPS_PROXY", "::::"), ("https_proxy", "http://192.0.2.1:9")])
            .envs([("HTTP_PROXY", "ftp://x"), ("ALL_PROXY", "what is this"), ("NO_PROXY", "[,/:")])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
        let outcomes: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        ensure!(outcomes.len() == 7, "{} scenarios", outcomes.len());
        for outcome in &outcomes {
            ensure!(outcome["verdict"] == "agrees", "{outcome}");
            ensure!(outcome["measured"]["answered"] == 3000, "{outcome}");
        }
        judge_predictions(&outcomes)?;
        let crossed = |n: usize| outcomes[n]["measured"]["crossed"].as_f64().unwrap_or(1.0);
        ensure!(crossed(0) > 0.6 && crossed(1) == 0.0 && crossed(2) == 0.0, "{outcomes:?}");
        ensure!(labs_in(scratch.path())?.is_empty(), "{:?}", labs_in(scratch.path())?);
        Ok(())
    });
}

/// Compares the demo's predictions with the oracle, for the cluster on the demo's page: two nodes in each
/// of three zones, with 8 cores each in the first zone and 4 in the others, and one rack per node.
fn judge_predictions(outcomes: &[Value]) -> Result<()> {
    const PODS: [(&str, usize); 5] =
        [("node-a1", 1), ("node-b1", 3), ("node-b2", 1), ("node-c1", 2), ("node-c2", 2)];
    let nodes: Vec<oracle::Node> = [("a", "8"), ("b", "4"), ("c", "4")]
        .into_iter()
        .flat_map(|(zone, cpu)| ["1", "2"].map(|n| (zone, n, cpu)))
        .map(|(zone, n, cpu)| {
            oracle::Node::read(&json!({
                "metadata": {"name": format!("node-{zone}{n}"), "labels": {
                    oracle::ZONE: format!("zone-{zone}"), "rack": format!("rack-{zone}{n}"),
                }},
                "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]},
            }))
        })
        .collect();
    let pods = PODS.iter().flat_map(|(node, count)| (0..*count).map(move |n| (node, n)));
    let pods: Vec<Value> = pods
        .map(|(node, n)| {
            json!({
                "spec": {"nodeName": node},
                "status": {
                    "podIP": format!("{node}-{n}"), "conditions": [{"type": "Ready", "status": "True"}],
                },
            })
        })
        .collect();
    for outcome in outcomes {
        let distribution = |value: &str| json!({"trafficDistribution": value});
        let spec = match text(&outcome["scenario"]) {
            "nothingSet" => json!({}),
            "preferSameZone" | "lastEndpointLost" => distribution("PreferSameZone"),
            "preferSameNode" => distribution("PreferSameNode"),
            "topologyKeys" => json!({"topologyKeys": ["rack", "*"]}),
            // The KEP does not say which Pods Auto assigns to the first zone, and no KEP has Balanced.
            "topologyModeAuto" | "balanced" => continue,
            other => anyhow::bail!("the oracle does not know the scenario {other}"),
        };
        let lost = outcome["scenario"] == "lastEndpointLost";
        let service = json!({"spec": spec});
        let request = oracle::request_of(&service, &Value::Null);
        let mut endpoints = oracle::read_pods(&service, &pods[usize::from(lost)..], &nodes);
        oracle::hint_own_place(&request, &mut endpoints);
        let keys = if let oracle::Request::Keys(keys) = &request { Some(&keys[..]) } else { None };
        let wanted = oracle::traffic(&service, keys, &endpoints, &nodes);
        for ((from, to), part) in &wanted {
            let predicted = outcome["predicted"]["matrix"][from][to].as_f64().unwrap_or_default();
            ensure!(
                (predicted - part).abs() < 1e-6,
                "{from} to {to}: {part} by the KEPs: {outcome}"
            );
        }
        let all: f64 = wanted.values().sum();
        ensure!((all - 1.0).abs() < 1e-6, "{all}: {outcome}");
    }
    Ok(())
}
