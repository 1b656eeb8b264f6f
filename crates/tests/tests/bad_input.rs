//! Bad input: each is refused with the right code and reason, and nothing is written.

use anyhow::Result;
use nearhop_skip::skip;
use nearhop_tests::cluster::Cluster;
use nearhop_tests::http::{Answer, Request};
use serde_json::{Value, json};

/// The user that sends a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Admin,
    ReadOnly,
    /// With a token that the server does not know.
    Unknown,
    /// Without a token.
    Anonymous,
}

struct Case {
    what: &'static str,
    user: User,
    request: Request,
    status: u16,
    /// Empty if the answer is not a Status.
    reason: &'static str,
}

fn case(what: &'static str, request: Request, status: u16, reason: &'static str) -> Case {
    Case { what, user: User::Admin, request, status, reason }
}

fn text(method: &str, path: &str, content_type: &str, body: impl Into<bytes::Bytes>) -> Request {
    Request::new(method, path).bytes(content_type, body)
}

/// Bodies that are wrong in themselves.
fn bodies(cluster: &Cluster) -> Vec<Case> {
    let (maps, services) = (cluster.core("configmaps"), cluster.core("services"));
    let post = |path: &str, body: Value| Request::new("POST", path).json(&body);
    let long = "x".repeat(300);
    let big = format!(
        "{{\"metadata\":{{\"name\":\"big\"}},\"data\":{{\"a\":\"{}\"}}}}",
        "x".repeat(10 << 20)
    );
    let deep = |open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!("{{\"metadata\":{{\"name\":\"deep\"}},\"data\":{open}1{close}}}")
    };
    let wide: String =
        format!("{{\"metadata\":{{\"name\":\"n\"}},\"data\":{{\"v\":{}}}}}", "9".repeat(400));
    vec![
        case(
            "invalid JSON",
            text("POST", &maps, "application/json", "{not json"),
            400,
            "BadRequest",
        ),
        case("no body", Request::new("POST", &maps), 400, "BadRequest"),
        case(
            "JSON that is not an object",
            text("POST", &maps, "application/json", "[1,2]"),
            400,
            "BadRequest",
        ),
        case(
            "not UTF-8",
            text("POST", &maps, "application/json", vec![b'{', 0xff, 0xfe, b'}']),
            400,
            "BadRequest",
        ),
        case(
            "wrong apiVersion",
            post(
                &maps,
                json!({"apiVersion": "v9", "kind": "ConfigMap", "metadata": {"name": "a"}}),
            ),
            400,
            "BadRequest",
        ),
        case(
            "other kind",
            post(&maps, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})),
            400,
            "BadRequest",
        ),
        case(
            "wrong type of a field",
            post(&services, json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": "x"}]}})),
            400,
            "BadRequest",
        ),
        case(
            "a number of 400 digits",
            text("POST", &maps, "application/json", wide),
            400,
            "BadRequest",
        ),
        case(
            "name of 300 characters",
            post(&maps, json!({"metadata": {"name": long}})),
            422,
            "Invalid",
        ),
        case("no name", post(&maps, json!({"metadata": {}})), 422, "Invalid"),
        case(
            "name with a slash",
            post(&maps, json!({"metadata": {"name": "a/b"}})),
            422,
            "Invalid",
        ),
        case(
            "label of 300 characters",
            post(&maps, json!({"metadata": {"name": "a", "labels": {"l": long}}})),
            422,
            "Invalid",
        ),
        case(
            "other namespace in the body",
            post(&maps, json!({"metadata": {"name": "a", "namespace": "other"}})),
            400,
            "BadRequest",
        ),
        case("10 MiB", text("POST", &maps, "application/json", big), 413, "RequestEntityTooLarge"),
        case(
            "100,000 lists deep",
            text("POST", &maps, "application/json", deep("[", "]")),
            400,
            "BadRequest",
        ),
        case(
            "100,000 objects deep",
            text("POST", &maps, "application/json", deep("{\"a\":", "}")),
            400,
            "BadRequest",
        ),
        case(
            "broken YAML",
            text("POST", &maps, "application/yaml", "a: [b: {c"),
            400,
            "BadRequest",
        ),
        case(
            "broken protobuf",
            text(
                "POST",
                &maps,
                "application/vnd.kubernetes.protobuf",
                vec![0x6b, 0x38, 0x73, 0, 0xff, 0xff, 0xff],
            ),
            400,
            "BadRequest",
        ),
        case(
            "protobuf without its prefix",
            text("POST", &maps, "application/vnd.kubernetes.protobuf", "nonsense"),
            400,
            "BadRequest",
        ),
        case(
            "unknown content type",
            text("POST", &maps, "text/plain", "{}"),
            415,
            "UnsupportedMediaType",
        ),
        case(
            "no ports",
            post(&services, json!({"metadata": {"name": "a"}, "spec": {}})),
            422,
            "Invalid",
        ),
        case(
            "clusterIP that is taken",
            post(
                &services,
                json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}),
            ),
            422,
            "Invalid",
        ),
        case(
            "clusterIP out of range",
            post(
                &services,
                json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "192.0.2.1", "ports": [{"port": 80}]}}),
            ),
            422,
            "Invalid",
        ),
        case(
            "nodePort out of range",
            post(
                &services,
                json!({"metadata": {"name": "a"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}}),
            ),
            422,
            "Invalid",
        ),
    ]
}

/// Requests that are wrong with any body.
fn requests(cluster: &Cluster) -> Vec<Case> {
    let (maps, kept) = (cluster.core("configmaps"), cluster.core("configmaps/kept"));
    let get = |rest: &str| Request::new("GET", &cluster.core(rest));
    let body = json!({"metadata": {"name": "a"}});
    let post = |path: &str| Request::new("POST", path).json(&body);
    let long = "x".repeat(129);
    vec![
        case("unknown resource", get("frobs"), 404, "NotFound"),
        case("unknown version", Request::new("GET", "/apis/apps/v9/deployments"), 404, "NotFound"),
        case("unknown group", Request::new("GET", "/apis/nope.example/v1/things"), 404, ""),
        case("unknown path", Request::new("GET", "/nope"), 404, ""),
        case("unknown object", get("configmaps/nope"), 404, "NotFound"),
        case("unknown subresource", get("configmaps/kept/nope"), 404, "NotFound"),
        case("missing namespace", post("/api/v1/namespaces/absent/configmaps"), 404, "NotFound"),
        case(
            "bad label selector",
            get("configmaps?labelSelector=a%3D%3D%3Db%21"),
            400,
            "BadRequest",
        ),
        case(
            "bad field selector",
            get("configmaps?fieldSelector=spec.foo%3Dbar"),
            400,
            "BadRequest",
        ),
        case("bad limit", get("configmaps?limit=abc"), 400, "BadRequest"),
        case("bad version", get("configmaps?resourceVersion=abc"), 400, "BadRequest"),
        case("bad continue token", get("configmaps?limit=1&continue=garbage"), 400, "BadRequest"),
        case("bad percent encoding", get("configmaps?labelSelector=%zz"), 400, "BadRequest"),
        case("HEAD", Request::new("HEAD", &kept), 405, ""),
        case("an unknown method", Request::new("FROB", &kept), 405, "MethodNotAllowed"),
        case(
            "PUT on a collection",
            Request::new("PUT", &maps).json(&body),
            405,
            "MethodNotAllowed",
        ),
        case("POST on an object", post(&kept), 405, "MethodNotAllowed"),
        case(
            "PATCH on a collection",
            text("PATCH", &maps, "application/merge-patch+json", "{}"),
            405,
            "MethodNotAllowed",
        ),
        case(
            "no acceptable answer",
            get("configmaps").header("accept", "text/html"),
            406,
            "NotAcceptable",
        ),
        case("dryRun=true", post(&format!("{maps}?dryRun=true")), 422, "Invalid"),
        case("fieldManager too long", post(&format!("{maps}?fieldManager={long}")), 422, "Invalid"),
        case(
            "fieldManager not printable",
            post(&format!("{maps}?fieldManager=a%0ab")),
            422,
            "Invalid",
        ),
        case(
            "unknown propagationPolicy",
            Request::new("DELETE", &kept).json(&json!({"propagationPolicy": "Sometimes"})),
            422,
            "Invalid",
        ),
        case(
            "delete with another uid",
            Request::new("DELETE", &kept).json(&json!({"preconditions": {"uid": "x"}})),
            409,
            "Conflict",
        ),
        case(
            "an object that exists",
            Request::new("POST", &maps).json(&json!({"metadata": {"name": "kept"}})),
            409,
            "AlreadyExists",
        ),
    ]
}

/// Patches that cannot be applied.
fn patches(cluster: &Cluster) -> Vec<Case> {
    const JSON: &str = "application/json-patch+json";
    const MERGE: &str = "application/merge-patch+json";
    let kept = cluster.core("configmaps/kept");
    let patch = |kind: &str, body: String| text("PATCH", &kept, kind, body);
    let operations = |count: usize| {
        let one = r#"{"op":"test","path":"/metadata/name","value":"kept"}"#;
        format!("[{}]", vec![one; count].join(","))
    };
    vec![
        case(
            "missing path",
            patch(JSON, r#"[{"op":"remove","path":"/data/nope"}]"#.into()),
            422,
            "Invalid",
        ),
        case(
            "add below a missing path",
            patch(JSON, r#"[{"op":"add","path":"/a/b/c","value":1}]"#.into()),
            422,
            "Invalid",
        ),
        case(
            "unknown operation",
            patch(JSON, r#"[{"op":"frob","path":"/data"}]"#.into()),
            422,
            "Invalid",
        ),
        case(
            "failing test",
            patch(JSON, r#"[{"op":"test","path":"/metadata/name","value":"x"}]"#.into()),
            422,
            "Invalid",
        ),
        case("not a list", patch(JSON, "{}".into()), 400, "BadRequest"),
        case("10,001 operations", patch(JSON, operations(10_001)), 413, "RequestEntityTooLarge"),
        case("merge patch that is not JSON", patch(MERGE, "{oops".into()), 400, "BadRequest"),
        case("merge patch that is a list", patch(MERGE, "[]".into()), 400, "BadRequest"),
        case(
            "merge patch of the name",
            patch(MERGE, r#"{"metadata":{"name":"other"}}"#.into()),
            400,
            "BadRequest",
        ),
        case(
            "merge patch of the uid",
            patch(MERGE, r#"{"metadata":{"uid":"x"}}"#.into()),
            422,
            "Invalid",
        ),
        case("merge patch to a wrong type", patch(MERGE, r#"{"data":7}"#.into()), 422, "Invalid"),
        case(
            "stale version",
            patch(MERGE, r#"{"metadata":{"resourceVersion":"1"},"data":{"x":"y"}}"#.into()),
            409,
            "Conflict",
        ),
        case("no patch type", patch("application/json", "{}".into()), 415, "UnsupportedMediaType"),
        case(
            "apply without a manager",
            patch(
                "application/apply-patch+yaml",
                r#"{"apiVersion":"v1","kind":"ConfigMap"}"#.into(),
            ),
            422,
            "Invalid",
        ),
    ]
}

/// Requests of users without the right.
fn forbidden(cluster: &Cluster) -> Vec<Case> {
    let (maps, kept) = (cluster.core("configmaps"), cluster.core("configmaps/kept"));
    let body = json!({"metadata": {"name": "a"}});
    let as_ = |user, what, request, status, reason| Case { what, user, request, status, reason };
    vec![
        as_(User::Unknown, "wrong token", Request::new("GET", &kept), 401, "Unauthorized"),
        as_(
            User::Unknown,
            "wrong token, writing",
            Request::new("POST", &maps).json(&body),
            401,
            "Unauthorized",
        ),
        as_(User::Anonymous, "no token", Request::new("GET", &kept), 403, "Forbidden"),
        as_(User::Anonymous, "no token, writing", Request::new("DELETE", &kept), 403, "Forbidden"),
        as_(
            User::ReadOnly,
            "read only: create",
            Request::new("POST", &maps).json(&body),
            403,
            "Forbidden",
        ),
        as_(User::ReadOnly, "read only: delete", Request::new("DELETE", &kept), 403, "Forbidden"),
        as_(
            User::ReadOnly,
            "read only: patch",
            text("PATCH", &kept, "application/merge-patch+json", "{}"),
            403,
            "Forbidden",
        ),
        as_(
            User::ReadOnly,
            "read only: Secrets",
            Request::new("GET", &cluster.core("secrets")),
            403,
            "Forbidden",
        ),
        as_(
            User::ReadOnly,
            "read only: dry run",
            Request::new("POST", &format!("{maps}?dryRun=All")).json(&body),
            403,
            "Forbidden",
        ),
    ]
}

async fn send(cluster: &Cluster, case: &Case) -> Result<Option<Answer>> {
    let target = match case.user {
        User::Admin => cluster.admin.clone(),
        User::Unknown => cluster.admin.with_token(Some("wrong")),
        User::Anonymous => cluster.admin.with_token(None),
        User::ReadOnly => match &cluster.server.read_only {
            Some(token) => cluster.admin.with_token(Some(token)),
            None => return Ok(None),
        },
    };
    target.send(case.request.clone()).await.map(Some)
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_with_a_reason_and_nothing_written() -> Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.config_map("kept", "1").await?;
    let state = async || -> Result<(Value, Value)> {
        let maps = cluster.read("configmaps").await?.json()["items"].clone();
        Ok((maps, cluster.read("services").await?.json()["items"].clone()))
    };
    let before = state().await?;
    let mut failures = Vec::new();
    let mut cases = bodies(&cluster);
    cases.extend(requests(&cluster));
    cases.extend(patches(&cluster));
    cases.extend(forbidden(&cluster));
    for case in &cases {
        let answer = match send(&cluster, case).await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                skip("this cluster has no read-only user");
                continue;
            }
            Err(error) => {
                failures.push(format!("{}: {error:#}", case.what));
                continue;
            }
        };
        let body = answer.json();
        let is_status =
            case.reason.is_empty() || (body["kind"] == "Status" && body["code"] == answer.status);
        if answer.status != case.status || answer.reason() != case.reason || !is_status {
            let (expected, reason) = (case.status, case.reason);
            let got = nearhop_tests::http::clip(&answer.text());
            failures.push(format!(
                "{}: expected {expected} {reason}, got {} {got}",
                case.what, answer.status
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n  {}",
        failures.len(),
        cases.len(),
        failures.join("\n  ")
    );
    assert_eq!(state().await?, before, "nothing was written");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continue_token_of_another_server_is_refused() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    for name in ["a", "b", "c"] {
        cluster.config_map(name, "1").await?;
    }
    let page = cluster.read("configmaps?limit=1").await?.json();
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    // The other server has never issued this token: the version in it is in its future, or not in its history.
    let other = Cluster::embedded().await?;
    let path = other.core(&format!("configmaps?limit=1&continue={token}"));
    let answer = other.admin.get(&path).await?;
    assert!(matches!(answer.status, 400 | 410), "{}", answer.text());
    if answer.status == 410 {
        let fresh = answer.json()["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        let path = other.core(&format!("configmaps?limit=1&continue={fresh}"));
        other.admin.get(&path).await?.expect(200)?;
    }
    Ok(())
}
