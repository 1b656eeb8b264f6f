//! A Pod's change appears in the DNS answer, through the controller and the API server.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use nearhop_tests::dns::{Client, DnsProcess};
use nearhop_tests::scene::{ControllerProcess, TIMEOUT};
use nearhop_tests::server::{Options, start_process};
use serde_json::{Value, json};

/// Required time limit from the event of a slice to the answer.
const REQUIRED: Duration = Duration::from_secs(1);

const PODS: &str = "/api/v1/namespaces/default/pods";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// An API server, a controller, a DNS server and a client.
struct Site {
    server: nearhop_tests::server::Server,
    _controller: ControllerProcess,
    _dns: DnsProcess,
    client: Client,
}

impl Site {
    async fn start() -> Result<Self> {
        let server = start_process(&Options::default())?;
        let node = json!({"metadata": {"name": "n1"}});
        server.admin.post("/api/v1/nodes", &node).await?.expect(201)?;
        let service = json!({
            "metadata": {"name": "db"},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]},
        });
        server.admin.post("/api/v1/namespaces/default/services", &service).await?.expect(201)?;
        let controller =
            ControllerProcess::start(&server, &["--leader-elect=false", "--mode=replace"])?;
        let dns = DnsProcess::start(&server, &[])?;
        let client = Client::at("127.0.0.1".parse()?, dns.address)?;
        Ok(Self { server, _controller: controller, _dns: dns, client })
    }

    async fn create_pod(&self, name: &str, ip: &str) -> Result<()> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "db"}},
            "spec": {
                "nodeName": "n1", "hostname": name, "subdomain": "db",
                "containers": [{"name": "c", "image": "nearhop/echo"}],
            },
        });
        self.server.admin.post(PODS, &pod).await?.expect(201)?;
        self.report_pod(name, ip, "True").await
    }

    async fn report_pod(&self, name: &str, ip: &str, ready: &str) -> Result<()> {
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}],
        }});
        self.server.admin.merge(&format!("{PODS}/{name}/status"), &status).await?.ok()?;
        Ok(())
    }

    /// Waits until an address is ready in the slices, or until it is not; returns the time.
    async fn until_slices(&self, address: &str, ready: bool) -> Result<Instant> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let list = self.server.admin.get(SLICES).await?.ok()?.json();
            let slices = list["items"].as_array().cloned().unwrap_or_default();
            let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().cloned());
            let there = endpoints.flatten().any(|endpoint: Value| {
                endpoint["addresses"][0] == address && endpoint["conditions"]["ready"] == true
            });
            if there == ready {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < deadline, "{address} ready is not {ready}: {list}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Asks until a name has `count` addresses; returns the delay after the slice.
    fn until_answered(&self, name: &str, count: usize, since: Instant) -> Result<Duration> {
        loop {
            let found = self.client.addresses(name)?;
            let late = since.elapsed();
            if found.len() == count {
                return Ok(late);
            }
            ensure!(late < REQUIRED, "{name} after {late:?}: {found:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_answers_follow_the_endpoints_within_a_second() {
    let done: Result<()> = async {
        let site = Site::start().await?;
        let (service, host) =
            ("db.default.svc.cluster.local.", "db-1.db.default.svc.cluster.local.");
        site.create_pod("db-0", "10.244.0.1").await?;
        let since = site.until_slices("10.244.0.1", true).await?;
        site.until_answered(service, 1, since)?;

        // The name does not exist yet.
        let denied = site.client.ask(host, RecordType::A)?;
        ensure!(denied.metadata.response_code == ResponseCode::NXDomain, "{denied}");
        site.create_pod("db-1", "10.244.0.2").await?;
        let since = site.until_slices("10.244.0.2", true).await?;
        let came = site.until_answered(host, 1, since)?;
        site.until_answered(service, 2, since)?;

        site.report_pod("db-1", "10.244.0.2", "False").await?;
        let since = site.until_slices("10.244.0.2", false).await?;
        let went = site.until_answered(service, 1, since)?;
        let denied = site.client.ask(host, RecordType::A)?;
        ensure!(denied.metadata.response_code == ResponseCode::NXDomain, "{denied}");
        println!("answered {came:?} after the slice, gone {went:?} after it");
        Ok(())
    }
    .await;
    done.unwrap();
}
