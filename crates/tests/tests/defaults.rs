//! Defaults of the API server: each recorded minimal input must give the recorded object.

use std::fs;

use anyhow::Result;
use nearhop_tests::replay::Difference;
use nearhop_tests::replay::accepted::{Accepted, Recordings};
use nearhop_tests::replay::compare::compare;
use nearhop_tests::replay::names::Names;
use nearhop_tests::replay::transcript::{Library, data};
use nearhop_tests::rest::{collection, item};
use nearhop_tests::server::{Options, Server, start};
use serde_json::{Value, json};

/// The Service ranges of the cluster that the `dualstack-*` files were recorded on.
const DUAL_STACK: &str = "10.96.0.0/16,fd00:10:96::/112";

fn cases() -> Vec<Value> {
    let mut cases: Vec<Value> = fs::read_dir(data().join("defaults"))
        .expect("data/defaults")
        .map(|entry| {
            let text = fs::read_to_string(entry.expect("entry").path()).expect("readable");
            serde_json::from_str(&text).expect("JSON")
        })
        .collect();
    // Definitions before their custom resources.
    cases
        .sort_by_key(|c| (c["input"]["kind"] != "CustomResourceDefinition", c["name"].to_string()));
    cases
}

fn is_dual_stack(case: &Value) -> bool {
    case["name"].as_str().is_some_and(|n| n.starts_with("dualstack-"))
}

async fn prepared(options: &Options) -> Result<Server> {
    let server = start(options).await?;
    let namespace = json!({"metadata": {"name": "probe"}});
    server.admin.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
    // A bound pod takes its zone label from the node.
    let node = Library::read()?.object("51-describe-node#4")?;
    let node = json!({"metadata": {"name": "n1", "labels": node["metadata"]["labels"]}});
    server.admin.post("/api/v1/nodes", &node).await?.expect(201)?;
    Ok(server)
}

/// The answer to a case: of the create request, or of a later read if the recording has that.
async fn answer(server: &Server, case: &Value) -> Result<(u16, Value)> {
    let admin = &server.admin;
    let output = &case["output"];
    if case["status"] == 201 || case["status"] == 422 {
        let answer = admin.post(&collection(&case["input"], "probe"), &case["input"]).await?;
        return Ok((answer.status, answer.json()));
    }
    let conditions = |o: &Value| o["status"]["conditions"].as_array().map(Vec::len);
    let mut answer = admin.get(&item(output, "probe")).await?;
    for _ in 0..50 {
        if answer.status == 200 && conditions(&answer.json()) == conditions(output) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        answer = admin.get(&item(output, "probe")).await?;
    }
    Ok((answer.status, answer.json()))
}

/// All differences between the cases and the answers of the server.
async fn differences(server: &Server, cases: &[Value]) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for case in cases {
        let name = case["name"].as_str().unwrap_or_default();
        let mut report = |path: String, text: String| {
            let (file, request) = (format!("defaults/{name}"), "POST".to_owned());
            differences.push(Difference { file, seq: 0, request, path, text });
        };
        let (status, actual) = answer(server, case).await?;
        if case["status"] != status {
            let expected = &case["status"];
            report("status".into(), format!("expected {expected}, got {status}: {actual}"));
            continue;
        }
        let volatile: Vec<String> = case["volatile"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str().map(|v| format!("response.output.{v}")))
            .collect();
        let mut names = Names::default();
        names.learn(&case["output"], &actual);
        let expected = names.document(&case["output"]);
        for found in compare("output", &expected, &actual, &volatile) {
            report(found.path, found.text);
        }
    }
    Ok(differences)
}

#[tokio::test(flavor = "multi_thread")]
async fn minimal_input_gives_the_recorded_object() -> Result<()> {
    let server = prepared(&Options::default()).await?;
    let (dual, single): (Vec<_>, Vec<_>) = cases().into_iter().partition(is_dual_stack);
    assert_eq!((single.len(), dual.len()), (41, 8));
    let mut all = differences(&server, &single).await?;
    let options = Options { service_cidr: Some(DUAL_STACK.into()), ..Options::default() };
    let server = prepared(&options).await?;
    all.extend(differences(&server, &dual).await?);

    let accepted = Accepted::read(Recordings::Defaults)?;
    let (unlisted, used) = accepted.judge(all);
    let unlisted: Vec<String> = unlisted.iter().map(ToString::to_string).collect();
    assert!(unlisted.is_empty(), "{} differences:\n  {}", unlisted.len(), unlisted.join("\n  "));
    let stale = accepted.stale(&used);
    assert!(stale.is_empty(), "entries of data/accepted.json that cover nothing: {stale:?}");
    Ok(())
}
