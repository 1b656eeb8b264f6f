//! Kubernetes Events, written to the embedded API server.

use std::time::Duration;

use http::Request;
use kube::Client;
use nearhop_apiserver::{ApiServer, Faults, Options};
use nearhop_core::{Name, ServiceKey};
use nearhop_proxy::health::event::{listen_failed, start_recorder, starting};
use nearhop_proxy::health::services::ListenFailure;
use nearhop_runtime::client::{ClientOptions, connect};
use nearhop_runtime::metrics::Metrics;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

async fn start(metrics: &Metrics) -> (ApiServer, Client) {
    let options = Options { faults: Faults::OnDemand, ..Options::default() };
    let server = ApiServer::start(options).await.expect("the API server starts");
    let directory = tempfile::tempdir().expect("a temporary directory is created");
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).expect("the kubeconfig is written");
    let user_agent = "nearhop-test/1".to_owned();
    let options = ClientOptions { kubeconfig: Some(kubeconfig), context: None, user_agent };
    let client = connect(&options, Some(metrics)).await.expect("the configuration is valid");
    (server, client)
}

async fn events(client: &Client) -> Vec<Value> {
    let request = Request::get("/api/v1/namespaces/default/events").body(Vec::new());
    let request = request.expect("the path is valid");
    let mut list: Value = client.request(request).await.expect("the API server lists the Events");
    list["items"].as_array_mut().map(std::mem::take).expect("a list has items")
}

fn failure(namespace: &str) -> ListenFailure {
    ListenFailure {
        service: ServiceKey::new(namespace, "cart"),
        port: 31000,
        address: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
        error: "Address already in use (os error 98)".to_owned(),
    }
}

#[tokio::test]
async fn events_are_written_with_their_objects() {
    let (_server, client) = start(&Metrics::new()).await;
    let node = Name::from("worker-3");
    let recorder = start_recorder(client.clone(), &node);
    recorder.emit(starting(&node));
    // The API server rejects this one; the next one is still written.
    recorder.emit(listen_failed(&node, &failure("nowhere"), None));
    recorder.emit(listen_failed(&node, &failure("default"), Some("1111".into())));
    recorder.finish(LIMIT).await;

    let events = events(&client).await;
    let of = |reason: &str| {
        let mut found = events.iter().filter(|event| event["reason"] == reason);
        found.next().unwrap_or_else(|| panic!("{reason} in {events:#?}"))
    };
    assert_eq!(events.len(), 2);
    let started = of("Starting");
    assert_eq!(started["type"], "Normal");
    assert_eq!(started["action"], "StartKubeProxy");
    assert_eq!(started["reportingComponent"], "nearhop-proxy");
    assert_eq!(started["reportingInstance"], "nearhop-proxy-worker-3");
    let object = &started["involvedObject"];
    assert_eq!((&object["kind"], &object["name"]), (&"Node".into(), &"worker-3".into()));
    assert_eq!(object["uid"], "worker-3");

    let failed = of("FailedToStartServiceHealthcheck");
    assert_eq!(failed["type"], "Warning");
    assert_eq!(failed["action"], "Listen");
    let object = &failed["involvedObject"];
    assert_eq!((&object["kind"], &object["name"]), (&"Service".into(), &"cart".into()));
    assert_eq!((&object["namespace"], &object["uid"]), (&"default".into(), &"1111".into()));
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("node worker-3") && message.contains("10.0.0.1:31000"), "{message}");
}

#[tokio::test]
async fn events_are_retried_after_server_errors() {
    let metrics = Metrics::new();
    let (_server, client) = start(&metrics).await;
    let set_faults = |faults: &'static str| {
        let request = Request::post("/nearhop/faults").body(faults.as_bytes().to_vec()).unwrap();
        let client = client.clone();
        async move { client.request_text(request).await.expect("the API server accepts the faults") }
    };
    set_faults(r#"{"answer":{"code":500,"share":1.0}}"#).await;
    let node = Name::from("worker-3");
    let recorder = start_recorder(client.clone(), &node);
    recorder.emit(starting(&node));
    recorder.emit(starting(&node));
    let refused = || metrics.encode().contains("rest_client_requests_total{code=\"500\"");
    let first = async {
        while !refused() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, first).await.expect("the recorder sends a request");
    set_faults("{}").await;
    recorder.finish(LIMIT).await;
    let events = events(&client).await;
    let [event] = &events[..] else { panic!("{events:#?}") };
    assert_eq!((&event["reason"], &event["count"]), (&"Starting".into(), &2.into()));
}

/// The server does not answer, and the queue is full: `emit` still returns at once.
#[tokio::test]
async fn emit_does_not_block_without_a_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let node = Name::from("worker-3");
    let recorder = start_recorder(client, &node);
    for _ in 0..1000 {
        recorder.emit(starting(&node));
    }
    recorder.finish(Duration::from_millis(10)).await;
}
