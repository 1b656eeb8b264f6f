//! The file of `--config`: `lab check`, `lab export`, and what `lab up` suggests for it.

use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use nearhop_tests::lab::{ECHO, Lab, Room, command};
use serde_json::{Value, json};

const SHOP: &str = "\
namespace team traffic-distribution=PreferSameNode
node n1 zone=east cpu=8 rack=r1
node n2 zone=west cpu=2
service shop/cart port=http:80->8080 port=dns:53->8081/udp type=NodePort topology-keys=rack,*
service team/db cluster-ip=None max-overload=20%
pod shop/cart-0 for=cart on=n1
pod shop/sick for=cart on=n2 notready
pod team/db-0 for=db on=n2 hostname=db-0 subdomain=db
";

/// `nearhop lab check -` with this text: exit code, standard output and standard error.
fn check(text: &str, more: &[&str]) -> Result<(Option<i32>, String, String)> {
    let scratch = tempfile::tempdir()?;
    let mut process = command(scratch.path())?
        .args(["lab", "check", "-"])
        .args(more)
        // It writes no file that Ctrl-C could leave.
        .env("TMPDIR", "/no/such/directory")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    process.stdin.take().context("piped")?.write_all(text.as_bytes())?;
    let output = process.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// Errors of the syntax, of the lab and of the API server have file, line and column.
#[test]
fn a_file_is_checked_without_a_lab() -> Result<()> {
    let (code, said, _) = check(SHOP, &[])?;
    let valid = "standard input: valid: 2 nodes in 2 zones, 2 Services, 3 Pods\n";
    ensure!((code, said.as_str()) == (Some(0), valid), "{said}");
    for (text, wanted) in [
        ("node n1 colour=red\n", "standard input:1:9: node has no option"),
        ("node n1\n node n2 notready\n", "standard input:2:10: node n2: notready is not supported"),
        ("node n1\npod p for=s on=n9\n", "standard input:2:13: pod default/p: there is no node"),
        ("node n1\nservice Cart\n", "standard input:2:9: service default/Cart: Service \"Cart\""),
        ("node n1\nservice s type=NodePort port=80 node-port=80\n", "standard input:2:9: service"),
        ("service s\n", "standard input:1:1: a lab needs at least one node"),
        ("node n1 rack=\"row 7\"\n", "standard input:1:9: node n1: `row 7` is not a label value"),
        ("nodes n x201\n", "standard input:1:7: node n-200: 201 nodes are too many"),
    ] {
        let (code, _, said) = check(text, &[])?;
        ensure!(code == Some(2) && said.contains(wanted), "{text}: {said}");
        ensure!(said.lines().count() == 1, "{text}: {said}");
        let (code, out, _) = check(text, &["-o", "json"])?;
        let out: Value = serde_json::from_str(&out)?;
        let error = out["error"].as_str().unwrap_or_default();
        ensure!(code == Some(2) && out["valid"] == false && error.contains(wanted), "{out}");
    }
    let (_, said, _) = check("nodes n x2\nnode m zone=a\n", &[])?;
    ensure!(said.contains("3 nodes in 1 zone,"), "a node without a zone is in none: {said}");
    let (_, said, _) = check("node n1\nservice s cluster-ip=10.96.0.9\n", &[])?;
    ensure!(
        said.contains("standard input:2:11: service default/s: cluster-ip is ignored"),
        "{said}"
    );
    Ok(())
}

/// The exported file of a lab starts a lab with the same nodes, Services and Pods.
#[test]
fn an_exported_lab_starts_again() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("shop.lab");
        std::fs::write(&file, SHOP)?;
        let first = Lab::up(&["--config", file.to_str().context("UTF-8")?])?;
        let room = Room::new(&first.kubeconfig).await?;
        room.create(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "echo", "image": ECHO}]},
                },
            },
        }))
        .await?;
        crate::rollout::until_rolled(&room, "web").await?;
        room.create(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"a": "b"},
        }))
        .await?;
        let text = first.text(&["lab", "export"])?;
        let namespace = &room.namespace;
        ensure!(text.contains(&format!("pods {namespace}/web x3 for=web on=n")), "{text}");
        ensure!(text.contains(&format!("# not exported: Secret {namespace}/token\n")), "{text}");
        let deployment =
            format!("# not exported: Deployment {namespace}/web; its Pods are a `pods` line");
        ensure!(text.contains(&deployment), "{text}");
        for line in [
            "namespace team traffic-distribution=PreferSameNode\n",
            "node n1 rack=r1 zone=east cpu=8\n",
        ] {
            ensure!(text.contains(line), "{text}");
        }
        let (code, said, _) = check(&text, &[])?;
        ensure!(code == Some(0) && !said.contains("warning"), "{said}\n{text}");
        drop(first);

        let again = scratch.path().join("again.lab");
        std::fs::write(&again, &text)?;
        let second = Lab::up(&["--config", again.to_str().context("UTF-8")?])?;
        let exported = second.text(&["lab", "export"])?;
        let lines = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> =
                text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        // The Pods of the Deployment are single lines now.
        let without = |text: &str| -> Vec<String> {
            lines(text).into_iter().filter(|line| !line.contains("/web")).collect()
        };
        ensure!(without(&text) == without(&exported), "{text}\n{exported}");
        let pods =
            exported.lines().filter(|line| line.starts_with(&format!("pod {namespace}/web-")));
        ensure!(pods.count() == 3, "{exported}");
        Ok(())
    });
}

/// `lab up` suggests commands for a Service of the file.
#[test]
fn a_service_of_the_file_is_suggested() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("shop.lab");
        std::fs::write(
            &file,
            "node n1 zone=a\nservice shop/cart\npod shop/cart-0 for=cart on=n1\n",
        )?;
        let output =
            command(scratch.path())?.args(["lab", "up", "-d", "--config"]).arg(&file).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        command(scratch.path())?.args(["lab", "down"]).output()?;
        ensure!(said.contains("nearhop lab drive shop/cart\n"), "{said}");
        ensure!(said.contains("kubectl -n shop patch service cart"), "{said}");
        ensure!(!said.contains("create deployment web"), "{said}");
        Ok(())
    });
}

/// What the API server says about a write is a warning at the place of the object.
#[test]
fn wishes_without_effect_are_warnings_with_a_place() {
    crate::run(async {
        let text = "node n1\nservice a routing-preference=Zone traffic-policy=Local\n\
                    namespace shop traffic-distribution=Bogus\nservice b max-overload=foo\n";
        let (code, out, _) = check(text, &["-o", "json"])?;
        let out: Value = serde_json::from_str(&out)?;
        let warned = out["warnings"].to_string();
        ensure!(code == Some(0), "{out}");
        for place in ["standard input:2:9: ", "standard input:3:11: ", "standard input:4:9: "] {
            ensure!(warned.contains(place), "{place}: {warned}");
        }
        let scratch = tempfile::tempdir()?;
        let up = up_with_input(scratch.path(), text)?;
        command(scratch.path())?.args(["lab", "down"]).output()?;
        let report: Value = serde_json::from_slice(&up.stdout)
            .with_context(|| String::from_utf8_lossy(&up.stderr).into_owned())?;
        ensure!(report["warnings"] == out["warnings"], "{report}");
        ensure!(report["nodes"][0]["name"] == "n1", "{report}");
        let said = String::from_utf8_lossy(&up.stderr).into_owned();
        ensure!(said.contains("warning: standard input:4:9: service default/b"), "{said}");
        Ok(())
    });
}

/// `nearhop lab up --detach --config -` with this text.
fn up_with_input(runtime: &std::path::Path, text: &str) -> Result<std::process::Output> {
    let mut process = command(runtime)?
        .args(["lab", "up", "--detach", "-o", "json", "--config", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    process.stdin.take().context("piped")?.write_all(text.as_bytes())?;
    Ok(process.wait_with_output()?)
}
