//! Tokens of ServiceAccounts: a token authenticates its account until the account is deleted.

use std::process::Command;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nearhop_skip::skip;
use nearhop_tests::cluster::Cluster;
use nearhop_tests::kubectl::Runner;
use serde_json::{Value, json};

const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

async fn request(cluster: &Cluster, account: &str, spec: &Value) -> Result<String> {
    let path = cluster.core(&format!("serviceaccounts/{account}/token"));
    let answer = cluster.admin.post(&path, &json!({"spec": spec})).await?.expect(201)?.json();
    Ok(answer["status"]["token"].as_str().context("no token")?.to_owned())
}

fn claims(token: &str) -> Result<Value> {
    let part = token.split('.').nth(1).context("the token does not have three parts")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part)?)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_valid_until_its_service_account_is_deleted() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let account = json!({"metadata": {"name": "robot"}});
    let made = cluster.create("serviceaccounts", &account).await?;
    let token = request(&cluster, "robot", &json!({"expirationSeconds": 900})).await?;
    let name = format!("system:serviceaccount:{}:robot", cluster.namespace);
    let said = claims(&token)?;
    assert_eq!(said["sub"], name);
    assert_eq!(said["kubernetes.io"]["serviceaccount"]["uid"], made["metadata"]["uid"]);
    let lasts = said["exp"].as_i64().zip(said["iat"].as_i64()).map(|(exp, iat)| exp - iat);
    assert!(lasts >= Some(900), "{said}");

    let robot = cluster.admin.with_token(Some(&token));
    let who = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let me = robot.post(WHO_AM_I, &who).await?.expect(201)?.json();
    let user = &me["status"]["userInfo"];
    assert_eq!(user["username"], name);
    let groups = user["groups"].to_string();
    assert!(groups.contains(&format!("system:serviceaccounts:{}", cluster.namespace)), "{groups}");
    // Without RBAC rules the account can read discovery, and nothing else.
    robot.get("/apis").await?.expect(200)?;
    let refused = robot.get(&cluster.core("secrets")).await?.expect(403)?.json();
    assert!(refused["message"].as_str().unwrap_or_default().contains(&name), "{refused}");

    let review = |audiences: Value| {
        json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token, "audiences": audiences}})
    };
    let known = cluster.admin.post(REVIEW, &review(json!([]))).await?.expect(201)?.json();
    assert_eq!(known["status"]["authenticated"], true);
    assert_eq!(known["status"]["user"]["username"], name);
    let other = cluster.admin.post(REVIEW, &review(json!(["other"]))).await?.expect(201)?.json();
    assert_ne!(other["status"]["authenticated"], true);

    cluster.admin.delete(&cluster.core("serviceaccounts/robot")).await?.ok()?;
    robot.post(WHO_AM_I, &who).await?.expect(401)?;
    // A new account with the same name does not make the old token valid.
    cluster.create("serviceaccounts", &account).await?;
    robot.post(WHO_AM_I, &who).await?.expect(401)?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_for_other_audiences_or_deleted_pods_are_refused() -> Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.create("serviceaccounts", &json!({"metadata": {"name": "robot"}})).await?;
    let vault = request(&cluster, "robot", &json!({"audiences": ["vault"]})).await?;
    assert_eq!(claims(&vault)?["aud"], json!(["vault"]));
    cluster.admin.with_token(Some(&vault)).get("/apis").await?.expect(401)?;

    let pod = json!({"metadata": {"name": "p"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}});
    cluster.create("pods", &pod).await?;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});
    let token = request(&cluster, "robot", &json!({"boundObjectRef": bound})).await?;
    let robot = cluster.admin.with_token(Some(&token));
    robot.get("/apis").await?.expect(200)?;
    cluster.admin.delete(&cluster.core("pods/p?gracePeriodSeconds=0")).await?.ok()?;
    if cluster.is_embedded() {
        // A real server may cache the Pod for a while.
        robot.get("/apis").await?.expect(401)?;
    }
    let path = cluster.core("serviceaccounts/robot/token");
    let short = json!({"spec": {"audiences": [AUDIENCE], "expirationSeconds": 60}});
    let refused = cluster.admin.post(&path, &short).await?.expect(422)?.json();
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("may not specify a duration less than 10 minutes"), "{message}");
    let gone = json!({"spec": {"boundObjectRef": bound}});
    cluster.admin.post(&path, &gone).await?.expect(404)?;
    let absent = cluster.core("serviceaccounts/absent/token");
    cluster.admin.post(&absent, &json!({"spec": {}})).await?.expect(404)?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_creates_a_token_that_authenticates_the_account() -> Result<()> {
    let Some(kubectl) = Runner::find() else {
        skip("kubectl is not installed");
        return Ok(());
    };
    let cluster = Cluster::shared().await?;
    cluster.create("serviceaccounts", &json!({"metadata": {"name": "robot"}})).await?;
    let home = tempfile::tempdir()?;
    let run = async |words: &[&str]| -> Result<String> {
        let mut command = Command::new(&kubectl);
        command.args(["--namespace", &cluster.namespace]).args(words);
        command.env("KUBECONFIG", &cluster.server.kubeconfig).env("HOME", home.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let (out, err) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        anyhow::ensure!(output.status.success(), "{words:?}: {err}");
        Ok(String::from_utf8(out)?.trim().to_owned())
    };
    let token = run(&["create", "token", "robot", "--duration", "20m"]).await?;
    let robot = cluster.admin.with_token(Some(&token));
    let who = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let me = robot.post(WHO_AM_I, &who).await?.expect(201)?.json();
    let name = format!("system:serviceaccount:{}:robot", cluster.namespace);
    assert_eq!(me["status"]["userInfo"]["username"], name);
    if cluster.is_embedded() {
        // The server creates the deleted Service `kubernetes` again, with the same cluster IP.
        run(&["--namespace", "default", "delete", "service", "kubernetes"]).await?;
        let created = ["wait", "--for=create", "service/kubernetes", "--timeout=60s"];
        run(&[&["--namespace", "default"], &created[..]].concat()).await?;
        let address = ["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"];
        assert_eq!(run(&[&["--namespace", "default"], &address[..]].concat()).await?, "10.96.0.1");
    }
    cluster.finish().await
}
