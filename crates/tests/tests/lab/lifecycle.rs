//! The commands around a lab: list, status, logs, wait, kubeconfig, faults, metrics, and a second start
//! with the same objects.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nearhop_tests::lab::{Lab, Room, TIMEOUT, command};
use serde_json::{Value, json};

use crate::endings::labs_in;

const SHOP: &str = "\
node n1 zone=east
node n2 zone=west
service shop/cart port=80->8080 type=NodePort traffic-distribution=PreferSameZone topology-mode=Auto
pods shop/cart x4 for=cart on=n1,n2
";

fn json_of(lab: &Lab, args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&lab.text(args)?)?)
}

/// Nodes that the lab does not have any more would stay Ready, and Pods of new nodes would
/// get the addresses of their Pods.
#[test]
fn nodes_of_another_topology_are_removed_with_their_pods() {
    crate::run(async {
        let data = tempfile::tempdir()?;
        let file = data.path().join("shop.lab");
        std::fs::write(&file, SHOP)?;
        let (file, data) = (file.display().to_string(), data.path().display().to_string());
        let lab = Lab::up(&["--config", &file, "--data-dir", &data])?;
        ensure!(lab.down()?.contains(&format!("its objects are kept in {data}")));

        let lab = Lab::up(&["--zones", "2", "--nodes-per-zone", "1", "--data-dir", &data])?;
        let warned = lab.warnings()?;
        ensure!(warned.contains("removed n1, n2, and their Pods shop/cart-0"), "{warned}");
        let room = Room::new(&lab.kubeconfig).await?;
        let nodes = room.admin.get("/api/v1/nodes").await?.ok()?.json();
        let nodes = nodes["items"].as_array().context("a list")?;
        let names: Vec<&str> =
            nodes.iter().filter_map(|node| node["metadata"]["name"].as_str()).collect();
        ensure!(names == ["node-a1", "node-b1"], "{names:?}");
        let pods = room.admin.get("/api/v1/pods").await?.ok()?.json();
        ensure!(pods["items"].as_array().is_some_and(Vec::is_empty), "{pods}");
        for node in ["node-a1", "node-b1"] {
            room.server(&format!("on-{node}"), node, "web", &["netexec"]).await?;
        }
        room.until_ready(&["on-node-a1", "on-node-b1"]).await?;
        room.service(
            "web",
            json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}),
        )
        .await?;
        let service = format!("service/{}/web", room.namespace);
        lab.text(&["lab", "wait", "--for", &service])?;
        let report = lab.drive(&[&format!("{}/web", room.namespace), "-n", "60"])?;
        ensure!(report["answered"] == 60, "{report}");
        drop(lab);

        // The same node with other Pod addresses is registered again.
        let other = ["--pod-cidr", "10.60.0.0/16,fd60::/48"];
        let args = ["--zones", "2", "--nodes-per-zone", "1", "--data-dir", &data];
        let lab = Lab::up(&[&args[..], &other[..]].concat())?;
        let warned = lab.warnings()?;
        ensure!(warned.contains("had other Pod addresses for node-a1, node-b1"), "{warned}");
        drop(lab);

        // Cluster IPs cannot change: that is refused.
        let other = ["--service-cidr", "10.50.0.0/16,fd50::/112"];
        let scratch = tempfile::tempdir()?;
        let refused =
            command(scratch.path())?.args(["lab", "up"]).args(args).args(other).output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(2), "{refused:?}");
        ensure!(
            said.contains("10.96.0.10") && said.contains("Cure: the --service-cidr of its first"),
            "{said}"
        );
        Ok(())
    });
}

/// The second start with a file reverted what a user had changed, without a word.
#[test]
fn a_second_start_with_a_file_keeps_what_a_user_changed() {
    crate::run(async {
        let data = tempfile::tempdir()?;
        let file = data.path().join("shop.lab");
        std::fs::write(&file, SHOP)?;
        let path = file.display().to_string();
        let args = ["--config", &path, "--data-dir", data.path().to_str().context("UTF-8")?];
        let service = "/api/v1/namespaces/shop/services/cart";
        let mode = "service.kubernetes.io/topology-mode";
        let lab = Lab::up(&args)?;
        let room = Room::new(&lab.kubeconfig).await?;
        let patch = json!({
            "metadata": {"annotations": {mode: null}},
            "spec": {"trafficDistribution": "PreferSameNode"},
        });
        room.admin.merge(service, &patch).await?.ok()?;
        lab.down()?;

        // The file has a new value of its own, too.
        std::fs::write(
            &file,
            SHOP.replace("cart port=80->8080", "cart port=80->8080 affinity=60s"),
        )?;
        let lab = Lab::up(&args)?;
        let warned = lab.warnings()?;
        let changed = "Service shop/cart: .spec.trafficDistribution was changed by ";
        ensure!(warned.contains(changed) && warned.contains("; kept"), "{warned}");
        let removed = format!("Service shop/cart: .metadata.annotations.{mode} was removed");
        ensure!(warned.contains(&removed), "{warned}");
        ensure!(warned.lines().count() == 2, "{warned}");
        // The proxies found the Service before their Nodes were registered.
        let logs = lab.text(&["lab", "logs"])?;
        ensure!(!logs.contains("node ports are not served"), "{logs}");
        let room = Room::new(&lab.kubeconfig).await?;
        let found = room.admin.get(service).await?.ok()?.json();
        ensure!(found["spec"]["trafficDistribution"] == "PreferSameNode", "{found}");
        ensure!(found["metadata"]["annotations"].get(mode).is_none(), "{found}");
        ensure!(found["spec"]["sessionAffinity"] == "ClientIP", "{found}");
        Ok(())
    });
}

/// Runs a check in a lab of two nodes.
fn in_small_lab(check: impl AsyncFnOnce(&Lab) -> Result<()>) {
    crate::run(async { check(&Lab::up(&["--zones", "2", "--nodes-per-zone", "1"])?).await });
}

#[test]
fn added_feature_gates_do_not_replace_those_of_the_lab() {
    in_small_lab(gates_are_merged);
}

#[test]
fn every_fault_is_confirmed_and_shown_in_the_status() {
    in_small_lab(every_fault_is_shown);
}

#[test]
fn the_metrics_of_every_process_can_be_read_from_the_machine() {
    in_small_lab(async |lab| metrics_are_read(lab));
}

#[test]
fn the_name_of_a_lab_is_accepted_before_and_after_the_command() {
    in_small_lab(async |lab| names_are_accepted_anywhere(lab));
}

#[test]
fn logs_are_followed_over_a_restart_of_the_process() {
    in_small_lab(async |lab| logs_are_followed(lab));
}

/// Added feature gates replaced those of the lab.
async fn gates_are_merged(lab: &Lab) -> Result<()> {
    let added = ["restart", "controller", "--", "--feature-gates=ServiceTopology=false"];
    let said = lab.text(&[&["lab", "fault"], &added[..]].concat())?;
    ensure!(said.contains("--feature-gates=PodLocator=true,ServiceTopology=false"), "{said}");
    ensure!(said.contains("undo: nearhop lab fault restart controller"), "{said}");
    let status = lab.text(&["lab", "status"])?;
    let shown = "added arguments: --feature-gates=ServiceTopology=false";
    ensure!(status.contains(shown), "{status}");
    // A new Pod of a headless Service still gets its PodLocator.
    let room = Room::new(&lab.kubeconfig).await?;
    room.server("late", "node-a1", "late", &["netexec"]).await?;
    room.until_ready(&["late"]).await?;
    let path = format!("/apis/nearhop.dev/v1alpha1/namespaces/{}/podlocators", room.namespace);
    room.until("a PodLocator", TIMEOUT, || async {
        let found = room.admin.get(&path).await?.ok()?.json();
        let any = found["items"].as_array().is_some_and(|items| !items.is_empty());
        Ok(if any { Ok(()) } else { Err(found.to_string()) })
    })
    .await?;
    let wrong = lab.run(&["lab", "fault", "restart", "manager", "--", "--nonsense"])?;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure!(wrong.status.code() == Some(2), "{wrong:?}");
    ensure!(said.contains("manager does not start with --nonsense"), "{said}");
    let healed = lab.text(&["lab", "fault", "heal", "all"])?;
    ensure!(healed.contains("controller keeps --feature-gates=ServiceTopology=false"), "{healed}");
    for process in ["controller", "manager"] {
        lab.fault(&["restart", process])?;
    }
    ensure!(!lab.text(&["lab", "status"])?.contains("added arguments"));
    Ok(())
}

/// Point 15: `status` did not show a flaky API, which also hit `drive`.
async fn every_fault_is_shown(lab: &Lab) -> Result<()> {
    for (fault, confirmed, shown) in [
        (
            &["cut", "node/node-a1"][..],
            "undo: nearhop lab fault heal node/node-a1",
            "cut off     node/node-a1",
        ),
        (
            &["pause", "dns/node-b1"],
            "undo: nearhop lab fault resume dns/node-b1",
            "dns/node-b1          paused",
        ),
        (
            &["kill", "manager"],
            "undo: nearhop lab fault start manager",
            "manager              killed",
        ),
        (&["drop-watches"], "nothing to undo", "closed all watches, times: 1"),
        (&["compact"], "nothing to undo", "dropped the watch history, times: 1"),
        (
            &["flaky", "--share", "100", "--code", "429", "--delay", "5ms"],
            "undo: nearhop lab fault heal all",
            "100% of requests fail with HTTP 429, all are delayed by 5 ms",
        ),
    ] {
        let said = lab.text(&[&["lab", "fault"], fault].concat())?;
        ensure!(said.contains(confirmed) && said.lines().count() == 1, "{fault:?}: {said}");
        let status = lab.text(&["lab", "status"])?;
        ensure!(status.contains(shown), "{fault:?}: {status}");
    }
    let status = json_of(lab, &["lab", "status", "-o", "json"])?;
    ensure!(status["apiFaults"]["flaky"]["share"] == 1.0, "{status}");
    ensure!(status["nodeMonitorGracePeriodSeconds"] == 8.0, "{status}");

    // Every request of other clients fails; those of `drive` do not.
    let room = Room::new(&lab.kubeconfig).await;
    ensure!(room.is_err(), "the API of a test is not exempt");
    let report =
        lab.drive(&["kube-system/kube-dns", "--udp", "--from", "node/node-b1", "-n", "1"])?;
    ensure!(report["connections"] == 1, "{report}");
    let healed = lab.text(&["lab", "fault", "heal", "all"])?;
    ensure!(healed.starts_with("healed all:"), "{healed}");
    let status = lab.text(&["lab", "status"])?;
    ensure!(
        !["cut off", "paused", "killed", "HTTP 429"].iter().any(|one| status.contains(one)),
        "{status}"
    );
    Ok(())
}

/// A plain HTTP client reads the metrics of every process.
fn metrics_are_read(lab: &Lab) -> Result<()> {
    let status = json_of(lab, &["lab", "status", "-o", "json"])?;
    for (process, series) in [
        ("controller", "endpoint_slice_controller_"),
        ("manager", "process_start_time_seconds"),
        ("agent/node-b1", "process_start_time_seconds"),
        ("dns/node-b1", "nearhop_dns_"),
        ("proxy/node-a1", "kubeproxy_"),
    ] {
        let url = status["processes"][process]["url"].as_str().context(process)?;
        let (address, path) =
            url.trim_start_matches("http://").split_once('/').context("a path")?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(stream, "GET /{path}/metrics HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(text.starts_with("HTTP/1.1 200 ") && text.contains(series), "{url}: {text}");
    }
    ensure!(lab.text(&["lab", "status"])?.contains("/PROCESS/metrics, such as controller"));
    Ok(())
}

fn names_are_accepted_anywhere(lab: &Lab) -> Result<()> {
    for args in [
        &["lab", "--name", "lab", "status"][..],
        &["lab", "status", "--name", "lab"],
        &["lab", "fault", "--name", "lab", "heal", "all"],
        &["lab", "fault", "heal", "all", "--name", "lab"],
        &["lab", "--name", "lab", "fault", "heal", "all"],
    ] {
        lab.text(args)?;
    }
    for args in [
        &["lab", "--name", "other", "status"][..],
        &["lab", "fault", "heal", "all", "--name", "other"],
        &["lab", "logs", "--name", "other"],
    ] {
        let output = lab.run(args)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
        ensure!(said.contains("no lab `other` runs; running labs: lab"), "{args:?}: {said}");
    }
    // As `kind delete cluster --name`: what was asked for is true already.
    let absent = lab.text(&["lab", "down", "--name", "other"])?;
    ensure!(absent == "no lab `other` runs; running labs: lab\n", "{absent}");
    let unset =
        command(lab.runtime_dir())?.env("NEARHOP_NAME", "").args(["lab", "status"]).output()?;
    ensure!(unset.status.success(), "an empty NEARHOP_NAME is no name: {unset:?}");
    Ok(())
}

/// `logs -f` continues after a restart of the process.
fn logs_are_followed(lab: &Lab) -> Result<()> {
    let unknown = lab.run(&["lab", "logs", "proxy/node-z9"])?;
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    ensure!(unknown.status.code() == Some(2) && said.contains("it has agent/node-a1"), "{said}");
    let all = lab.text(&["lab", "logs"])?;
    ensure!(all.contains("[controller] ") && all.contains("[proxy/node-b1] "), "{all}");
    let last = lab.text(&["lab", "logs", "controller", "--tail", "1"])?;
    ensure!(last.lines().count() == 1, "{last}");
    let mut follow = Following(
        command(lab.runtime_dir())?
            .args(["lab", "logs", "-f", "controller", "--tail", "0"])
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let lines = BufReader::new(follow.0.stdout.take().context("piped")?).lines();
    let (sender, started) = mpsc::channel();
    // Ends with the process, or when it has seen a line.
    let reader = std::thread::spawn(move || {
        let mut lines = lines.map_while(Result::ok);
        if lines.any(|line| line.contains("controller started")) {
            let _ = sender.send(());
        }
    });
    let deadline = Instant::now() + TIMEOUT;
    // `lab logs` may not have opened the file yet when the first restart writes its line.
    while started.recv_timeout(Duration::from_millis(500)).is_err() {
        ensure!(Instant::now() < deadline, "the log of a new process was not printed");
        lab.fault(&["restart", "controller"])?;
    }
    reader.join().ok().context("the reader panicked")?;
    // The pipe is closed; the next line ends it.
    lab.fault(&["restart", "controller"])?;
    let ended = follow.end()?;
    ensure!(ended.success(), "a closed pipe is no error: {ended}");
    Ok(())
}

/// A process that ends with the test.
struct Following(Child);

impl Following {
    fn end(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "`lab logs -f` does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What scripts use: `up -o json`, `list`, `wait`, `kubeconfig --merge`, `down`.
#[test]
fn scripts_start_find_use_and_stop_a_lab() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let run = |args: &[&str]| -> Result<(i32, String, String)> {
            let home = scratch.path().join("home");
            let output = command(scratch.path())?
                .args(args)
                .env("HOME", home)
                .env_remove("KUBECONFIG")
                .stdin(Stdio::null())
                .output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
        };
        ensure!(run(&["lab", "list"])? == (0, "no lab runs\n".to_owned(), String::new()));
        let (code, said, _) = run(&["lab", "down"])?;
        ensure!((code, said.as_str()) == (0, "no lab runs\n"), "{said}");
        let (code, _, said) = run(&["lab", "wait", "--timeout", "100ms"])?;
        ensure!(code == 1 && said.contains("no lab runs"), "{code} {said}");

        let file = scratch.path().join("shop.lab");
        std::fs::write(&file, SHOP)?;
        let file = file.display().to_string();
        let (code, up, said) =
            run(&["lab", "up", "-d", "-o", "json", "--name", "ci", "--config", &file])?;
        ensure!(code == 0, "{said}");
        let up: Value = serde_json::from_str(&up)?;
        ensure!(up["name"] == "ci" && up["services"] == json!(["shop/cart"]), "{up}");
        ensure!(up["nodes"][1]["name"] == "n2" && up["nodes"][1]["zone"] == "west", "{up}");
        ensure!(
            up["server"].as_str().is_some_and(|url| url.starts_with("https://127.0.0.1:")),
            "{up}"
        );
        // Without the flag the period is that of Kubernetes.
        ensure!(up["nodeMonitorGracePeriodSeconds"] == 50.0, "{up}");
        let (_, status, _) = run(&["lab", "status"])?;
        ensure!(status.contains("not ready after 50 s without a heartbeat"), "{status}");

        let (_, list, _) = run(&["lab", "list", "-o", "json"])?;
        let list: Value = serde_json::from_str(&list)?;
        ensure!(
            list[0]["name"] == "ci" && list[0]["state"] == "up" && list[0]["nodes"] == 2,
            "{list}"
        );
        let goals = ["lab", "wait", "--for", "ready", "--for", "service/shop/cart"];
        let (code, _, said) = run(&goals)?;
        ensure!(code == 0, "{said}");
        let absent = ["lab", "wait", "--for", "service/absent", "--timeout", "200ms"];
        let (code, _, said) = run(&absent)?;
        ensure!(code == 1 && said.contains("absent"), "{code} {said}");

        let (_, own, _) = run(&["lab", "kubeconfig"])?;
        ensure!(own.contains("current-context"), "{own}");
        let (code, said, _) = run(&["lab", "kubeconfig", "--merge"])?;
        ensure!(code == 0 && said.contains("nearhop-ci"), "{said}");
        let merged = scratch.path().join("home/.kube/config");
        ensure!(std::fs::read_to_string(&merged)?.contains("current-context: nearhop-ci"));
        let broken = scratch.path().join("broken");
        let merge = ["lab", "kubeconfig", "--merge"];
        let also = command(scratch.path())?.args(merge).env("KUBECONFIG", &broken).output()?;
        ensure!(also.status.success(), "{also:?}");
        std::fs::write(&broken, "{unbalanced: [")?;
        let (code, said, warned) = run(&["lab", "down"])?;
        let cure = "Cure: kubectl config delete-context nearhop-ci";
        let left = format!("could not remove the context nearhop-ci from {}", broken.display());
        ensure!(warned.contains(&left) && warned.contains(cure), "{warned}");
        ensure!(!said.contains("broken"), "{said}");
        ensure!(code == 0 && said.contains("lab `ci` stopped"), "{said}");
        ensure!(said.contains("removed the context nearhop-ci from"), "{said}");
        ensure!(!std::fs::read_to_string(&merged)?.contains("nearhop-ci"));
        ensure!(labs_in(scratch.path())?.is_empty());
        Ok(())
    });
}
