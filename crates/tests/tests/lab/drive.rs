//! `nearhop lab drive` in a running lab, as a user types it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_tests::lab::{Lab, Room, TIMEOUT, command};
use serde_json::{Value, json};

/// Zone `east` has three quarters of the CPU and one of the three Pods.
const CONFIG: &str = "\
node n1 zone=east cpu=8
node n2 zone=east cpu=4
node n3 zone=west cpu=4
service shop/cart port=http:80->8080 port=echo:81->8081/udp type=NodePort
service shop/empty port=http:80->8080
pod shop/cart-0 for=cart on=n1
pod shop/cart-1 for=cart on=n3
pod shop/cart-2 for=cart on=n3
";

/// A lab of [`CONFIG`] whose proxies have all endpoints.
async fn lab() -> Result<Lab> {
    let scratch = tempfile::tempdir()?;
    let config = scratch.path().join("lab.conf");
    std::fs::write(&config, CONFIG)?;
    let lab = Lab::up(&["--config", config.to_str().context("the path is not UTF-8")?])?;
    let room = Room::new(&lab.kubeconfig).await?;
    room.until("every Pod to answer every node", TIMEOUT, || async {
        let report = lab.drive(&["shop/cart", "-n", "90"])?;
        let rows = report["nodeMatrix"].as_object().context("no nodeMatrix")?;
        let all = rows.values().all(|row| row["n1"].is_u64() && row["n3"].is_u64());
        Ok(if all && report["failed"] == 0 { Ok(()) } else { Err(report.to_string()) })
    })
    .await?;
    Ok(lab)
}

fn drive(lab: &Lab, args: &[&str]) -> Result<Output> {
    lab.run(&[&["lab", "drive"], args].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A drive that runs, and is killed when dropped.
struct Running(Child);

impl Running {
    fn start(lab: &Lab, args: &[&str]) -> Result<Self> {
        let mut drive = command(lab.runtime_dir())?;
        drive.args(["lab", "drive"]).args(args);
        drive.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(drive.spawn()?))
    }

    fn signal(&self, name: &str) -> Result<()> {
        let pid = self.0.id().to_string();
        ensure!(std::process::Command::new("kill").args([name, &pid]).status()?.success());
        Ok(())
    }

    /// Output and exit code; an error after a minute.
    fn end(mut self) -> Result<(String, Option<i32>)> {
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "lab drive still runs");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut text = String::new();
        self.0.stdout.take().context("stdout is piped")?.read_to_string(&mut text)?;
        self.0.stderr.take().context("stderr is piped")?.read_to_string(&mut text)?;
        Ok((text, status.code()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Command lines of the lab's clients on nodes that run now: they have the path of a socket.
fn clients_of(lab: &Lab) -> Result<Vec<String>> {
    clients_with(&lab.runtime_dir().display().to_string())
}

/// Command lines of clients with this argument.
fn clients_with(argument: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        // A process may end while they are listed.
        let line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(" lab-drive ") && line.contains(argument) {
            found.push(line);
        }
    }
    Ok(found)
}

/// Waits until no client with this argument runs.
fn until_no_client_with(argument: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = clients_with(argument)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("these clients still run: {left:#?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn until_nothing_is_left(lab: &Lab) -> Result<()> {
    until_no_client_with(&lab.runtime_dir().display().to_string())
}

/// Waits until a client with this argument runs.
fn until_client_with(argument: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while clients_with(argument)?.is_empty() {
        ensure!(Instant::now() < deadline, "no client runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn until_clients_run(lab: &Lab) -> Result<()> {
    until_client_with(&lab.runtime_dir().display().to_string())
}

fn sockets_of_drives(lab: &Lab) -> Result<Vec<String>> {
    let labs = lab.runtime_dir().join("nearhop");
    let mut found = Vec::new();
    for one in std::fs::read_dir(labs)? {
        let one = one?.path();
        for file in
            if one.is_dir() { Some(std::fs::read_dir(one)?) } else { None }.into_iter().flatten()
        {
            let name = file?.file_name().to_string_lossy().into_owned();
            found.extend(name.starts_with("drive-").then_some(name));
        }
    }
    Ok(found)
}

/// The Service is deleted while 8000 connections are asked for: the drive ends, shows the timeouts and
/// exits with 1.
#[test]
fn a_drive_to_a_deleted_service_ends_and_shows_its_failures() {
    crate::run(async {
        let lab = lab().await?;
        let room = Room::new(&lab.kubeconfig).await?;
        let args = ["shop/cart", "-n", "1000000", "--concurrency", "6", "--timeout", "500ms"];
        let running = Running::start(&lab, &args)?;
        until_clients_run(&lab)?;
        room.admin.delete("/api/v1/namespaces/shop/services/cart").await?.ok()?;
        let (text, code) = running.end()?;
        ensure!(code == Some(1), "{code:?}: {text}");
        ensure!(text.contains("gave up, because every connection timed out"), "{text}");
        ensure!(text.contains("timed out") && text.contains("from node/n1:"), "{text}");
        until_nothing_is_left(&lab)?;
        // Now it cannot even begin.
        let output = drive(&lab, &["shop/cart"])?;
        ensure!(output.status.code() == Some(2), "{output:?}");
        let said = stderr(&output);
        ensure!(said.contains("`shop/cart`") && said.contains("shop/empty"), "{said}");
        Ok(())
    });
}

/// Neither side of an answered connection keeps its port in TIME_WAIT, so a later connection from the
/// same port does not wait.
#[test]
fn no_port_of_a_drive_stays_in_time_wait() {
    crate::run(async {
        let lab = lab().await?;
        let report = lab.drive(&["shop/cart", "--from", "node/n2", "-n", "3000"])?;
        ensure!(report["answered"] == 3000, "{report}");
        for place in ["node/n2", "shop/cart-0", "shop/cart-1", "shop/cart-2"] {
            for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
                let sockets = lab.text(&["lab", "exec", place, "--", "cat", table])?;
                // The fourth column is the state; 06 is TIME_WAIT. Port 1F90 is 8080, 50 is 80.
                let left = sockets.lines().filter(|line| {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    let ports = [":1F90", ":0050"];
                    words.get(3) == Some(&"06")
                        && ports
                            .iter()
                            .any(|port| words[1].ends_with(port) || words[2].ends_with(port))
                });
                let left = left.count();
                ensure!(left == 0, "{place} {table}: {left} connections in TIME_WAIT");
            }
        }
        Ok(())
    });
}

/// Clients outside the cluster have no zone: the share is not available, and no assertion on it can
/// pass. The same without any answer.
#[test]
fn a_share_from_another_zone_needs_a_client_with_a_zone_and_an_answer() {
    crate::run(async {
        let lab = lab().await?;
        let outside = lab.drive(&["shop/cart", "--from", "external", "-n", "60"])?;
        ensure!(outside["answered"] == 60, "{outside}");
        ensure!(outside["crossZone"].is_null() && outside["crossNode"].is_null(), "{outside}");
        let text = stdout(&drive(&lab, &["shop/cart", "--from", "external", "-n", "60"])?);
        ensure!(text.contains("n/a of them from another zone"), "{text}");
        ensure!(text.contains("an external client has no zone"), "{text}");
        let assertion = ["--assert", "cross-zone<=100%"];
        let refused =
            drive(&lab, &[&["shop/cart", "--from", "external"], &assertion[..]].concat())?;
        ensure!(refused.status.code() == Some(2), "{refused:?}");
        ensure!(
            stderr(&refused).contains("an external client has no zone to leave"),
            "{refused:?}"
        );

        let empty = drive(&lab, &[&["shop/empty", "-n", "20"], &assertion[..]].concat())?;
        ensure!(empty.status.code() == Some(1), "{empty:?}");
        let text = stdout(&empty);
        ensure!(
            text.contains("20 connections") && text.contains("0 answered, n/a of them"),
            "{text}"
        );
        ensure!(
            text.contains("failed  cross-zone<=100%") && text.contains("n/a: no answer"),
            "{text}"
        );
        ensure!(text.contains("no ready endpoint at the start"), "{text}");
        Ok(())
    });
}

/// Each assertion is printed with its measured value; the exit code is 1 if one does not hold.
#[test]
fn assertions_are_printed_and_decide_the_exit_code() {
    crate::run(async {
        let lab = lab().await?;
        let held = ["--assert", "failed==0", "--assert", "answered>=300", "--assert", "p99<=1m"];
        let wrong = drive(&lab, &[&["shop/cart", "-n", "300"], &held[..]].concat())?;
        ensure!(wrong.status.code() == Some(2), "{wrong:?}");
        ensure!(stderr(&wrong).contains("at character 6: expected a time"), "{wrong:?}");
        let held = ["--assert", "failed==0", "--assert", "share(east->west)>10%"];
        let output = drive(&lab, &[&["shop/cart", "-n", "300"], &held[..]].concat())?;
        ensure!(output.status.code() == Some(0), "{output:?}");
        let broken = ["--assert", "cross-zone<=1%", "--assert", "failed==0"];
        let output = drive(&lab, &[&["shop/cart", "-n", "300"], &broken[..]].concat())?;
        let text = stdout(&output);
        ensure!(output.status.code() == Some(1), "{text}");
        ensure!(
            text.contains("failed  cross-zone<=1%") && text.contains("held    failed==0"),
            "{text}"
        );
        let report = lab.drive(&[&["shop/cart", "-n", "300"], &broken[..]].concat())?;
        ensure!(report["assertions"][0]["held"] == false, "{report}");
        ensure!(
            report["assertions"][1]
                == json!(
            {"assertion": "failed==0", "held": true, "measured": "0"}),
            "{report}"
        );
        let unknown = drive(&lab, &["shop/cart", "--assert", "share(east->north)<1%"])?;
        ensure!(unknown.status.code() == Some(2), "{unknown:?}");
        ensure!(stderr(&unknown).contains("two zones (east, west)"), "{unknown:?}");
        Ok(())
    });
}

fn count(report: &Value, client: &str) -> u64 {
    report["clients"][client]["answered"].as_u64().unwrap_or_default()
}

/// `--by cpu` opens as many connections per node as the demo, and Balanced can be seen by hand.
#[test]
fn connections_are_divided_by_cpu_by_node_or_by_pod() {
    crate::run(async {
        let lab = lab().await?;
        let counts = |by: &[&str]| -> Result<[u64; 3]> {
            let report = lab.drive(&[&["shop/cart", "-n", "400"], by].concat())?;
            Ok(["node/n1", "node/n2", "node/n3"].map(|client| count(&report, client)))
        };
        ensure!(counts(&["--by", "cpu"])? == [200, 100, 100]);
        ensure!(counts(&["--by", "pod"])? == [133, 0, 267]);
        ensure!(counts(&[])? == [134, 133, 133]);
        // The node matrix tells PreferSameNode from PreferSameZone.
        let room = Room::new(&lab.kubeconfig).await?;
        let patch = json!({"spec": {"trafficDistribution": "PreferSameNode"}});
        room.admin.merge("/api/v1/namespaces/shop/services/cart", &patch).await?.ok()?;
        room.until("n3 to serve itself", TIMEOUT, || async {
            let report = lab.drive(&["shop/cart", "-n", "90", "--from", "node/n3"])?;
            let own = report["nodeMatrix"]["n3"] == json!({"n3": 90});
            Ok(if own && report["crossNode"] == 0.0 { Ok(()) } else { Err(report.to_string()) })
        })
        .await
    });
}

/// Connections begin at fixed times, and a rate that cannot be kept is said.
#[test]
fn a_rate_is_kept_or_reported_as_not_kept() {
    crate::run(async {
        let lab = lab().await?;
        let report = lab.drive(&["shop/cart", "-n", "120", "--rate", "60"])?;
        ensure!(report["connections"] == 120 && report["rate"]["wanted"] == 60.0, "{report}");
        ensure!(
            report["seconds"].as_f64() > Some(1.9),
            "the last one is due after 1.98 s: {report}"
        );
        let report = lab.drive(&["shop/cart", "--duration", "1s"])?;
        ensure!(report["end"] == "finished" && report["planned"].is_null(), "{report}");
        ensure!(report["answered"].as_u64() > Some(0) && report["failed"] == 0, "{report}");
        // One connection at a time to a node that is cut off takes its whole timeout.
        lab.fault(&["cut", "node/n3"])?;
        lab.fault(&["cut", "node/n1"])?;
        let slow = ["--rate", "10", "--concurrency", "1", "--timeout", "400ms", "-n", "12"];
        let report = lab.drive(&[&["shop/cart", "--from", "node/n2"], &slow[..]].concat())?;
        ensure!(report["failures"]["timedOut"] == 12, "{report}");
        ensure!(report["rate"]["late"].as_u64() > Some(5), "{report}");
        ensure!(
            report["notes"].to_string().contains("the rate was not kept: 10/s wanted"),
            "{report}"
        );
        // The kernel knows which endpoint did not answer.
        ensure!(report["failuresBySource"]["node/n2"]["timedOut"] == 12, "{report}");
        let targets = report["failuresByTarget"].as_object().context("no failuresByTarget")?;
        ensure!(targets.keys().any(|target| target.starts_with("pod/shop/cart-")), "{report}");
        Ok(())
    });
}

/// Ctrl-C, SIGTERM and a closed terminal print the result so far; a killed drive leaves no client.
#[test]
fn signals_end_a_drive_with_the_result_so_far_and_leave_nothing() {
    crate::run(async {
        let lab = lab().await?;
        for (signal, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
            let running = Running::start(&lab, &["shop/cart", "--duration", "1h", "--rate", "50"])?;
            until_clients_run(&lab)?;
            std::thread::sleep(Duration::from_millis(500));
            running.signal(signal)?;
            let (text, code) = running.end()?;
            ensure!(code == Some(expected), "{signal}: {code:?} {text}");
            ensure!(text.starts_with("interrupted: the result so far\n"), "{signal}: {text}");
            ensure!(!text.contains('\x1b'), "no terminal: {text:?}");
            until_nothing_is_left(&lab)?;
        }
        // A killed drive cannot stop its clients.
        let directory = lab.runtime_dir().display().to_string();
        let room = Room::new(&lab.kubeconfig).await?;
        let service = room.admin.get("/api/v1/namespaces/shop/services/cart").await?.ok()?.json();
        let address = service["spec"]["clusterIP"].as_str().context("no cluster IP")?;
        let cases = [(&[][..], &*directory), (&["--from", "pod/cart-1"], &format!("{address}:80"))];
        for (from, argument) in cases {
            let args = [&["shop/cart", "--duration", "1h"], from].concat();
            let running = Running::start(&lab, &args)?;
            until_client_with(argument)?;
            // Let all of them connect.
            std::thread::sleep(Duration::from_millis(1000));
            running.signal("-KILL")?;
            drop(running);
            until_no_client_with(argument)?;
        }
        ensure!(sockets_of_drives(&lab)?.is_empty(), "{:?}", sockets_of_drives(&lab)?);
        Ok(())
    });
}

/// The lab stops while a drive runs: the drive prints what it has and which clients it lost.
#[test]
fn a_drive_whose_lab_ends_prints_the_result_so_far() {
    crate::run(async {
        let lab = lab().await?;
        let running = Running::start(&lab, &["shop/cart", "--duration", "1h", "--rate", "50"])?;
        until_clients_run(&lab)?;
        std::thread::sleep(Duration::from_millis(800));
        lab.text(&["lab", "down"])?;
        let (text, code) = running.end()?;
        ensure!(code == Some(2), "{code:?}: {text}");
        ensure!(text.contains("lost: node/n1: the lab ended\nlost: node/n2"), "{text}");
        ensure!(!text.contains("connections in 0.0 s"), "{text}");
        Ok(())
    });
}

/// A reader that does not read blocks the drive in its output. A second Ctrl-C ends it at once.
#[test]
fn a_second_ctrl_c_ends_a_drive_that_cannot_print() {
    crate::run(async {
        let lab = lab().await?;
        let mut running =
            Running::start(&lab, &["shop/cart", "--watch=200ms", "-n", "10", "-o", "json"])?;
        until_clients_run(&lab)?;
        // The test does not read, so the pipe of 64 KiB fills up. Then no interval begins.
        let deadline = Instant::now() + TIMEOUT * 2;
        let mut idle = 0;
        while idle < 30 {
            ensure!(Instant::now() < deadline, "the drive goes on without a reader");
            idle = if clients_of(&lab)?.is_empty() { idle + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(100));
        }
        running.signal("-INT")?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(running.0.try_wait()?.is_none(), "it is not blocked");
        running.signal("-INT")?;
        let deadline = Instant::now() + TIMEOUT;
        while running.0.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the second signal does not end it");
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(running.0.wait()?.code() == Some(130));
        Ok(())
    });
}

/// `--watch` prints one result per interval; it follows a changed Service, and ends when the pipe is closed.
#[test]
fn watch_prints_a_result_per_interval() {
    crate::run(async {
        let lab = lab().await?;
        let room = Room::new(&lab.kubeconfig).await?;
        let mut running =
            Running::start(&lab, &["shop/cart", "--watch=500ms", "-n", "40", "-o", "json"])?;
        let mut lines = BufReader::new(running.0.stdout.take().context("stdout is piped")?).lines();
        let mut next = || -> Result<Value> {
            let line = lines.next().context("the watch ended")??;
            Ok(serde_json::from_str(&line)?)
        };
        ensure!(next()?["connections"] == 40);
        let patch = json!({"spec": {"trafficDistribution": "PreferSameZone"}});
        room.admin.merge("/api/v1/namespaces/shop/services/cart", &patch).await?.ok()?;
        let deadline = Instant::now() + TIMEOUT;
        while next()?["crossZone"] != 0.0 {
            ensure!(Instant::now() < deadline, "the watch does not show the new policy");
        }
        // The API server may be away: the known clients and targets are used.
        lab.fault(&["kill", "apiserver"])?;
        while !next()?["notes"].to_string().contains("an earlier interval") {
            ensure!(Instant::now() < deadline, "the watch does not say that it is stale");
        }
        drop(lines);
        let deadline = Instant::now() + TIMEOUT;
        while running.0.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the watch runs on without a reader");
            std::thread::sleep(Duration::from_millis(50));
        }
        until_nothing_is_left(&lab)
    });
}

/// Errors list what exists.
#[test]
fn errors_of_a_drive_list_what_exists() {
    crate::run(async {
        let lab = lab().await?;
        let cases: [(&[&str], &str); 7] = [
            (&["shop/crat"], "`shop/crat`; it has default/kubernetes"),
            (&["shop/cart:https"], "no TCP port https; it has 80/TCP (http), 81/UDP (echo)"),
            (
                &["shop/cart", "--from", "pod/cart-9"],
                "`shop/cart-9`; it has shop/cart-0, shop/cart-1",
            ),
            (&["shop/cart", "--from", "node/n9"], "`n9`; it has n1, n2, n3"),
            (&["shop/cart", "--from", "zone/north"], "`north`; it has east, west"),
            (&["default/kubernetes", "--by", "pod"], "no Pod of its namespace runs"),
            (&["shop/empty", "--from", "external"], "it has no node port"),
        ];
        for (args, wanted) in cases {
            let output = drive(&lab, args)?;
            ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
            ensure!(stderr(&output).contains(wanted), "{args:?}: {}", stderr(&output));
        }
        Ok(())
    });
}
