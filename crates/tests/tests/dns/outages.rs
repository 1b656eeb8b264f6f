//! The API server is down: the DNS server answers from its last state and becomes unready, and a DNS
//! server that starts meanwhile does not answer.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nearhop_tests::dns::{Client, DnsProcess, spawn};
use nearhop_tests::http::get_plain;
use nearhop_tests::scene::TIMEOUT;
use nearhop_tests::server::{Options, start_process};
use serde_json::json;

const NAME: &str = "web.default.svc.cluster.local.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_answers_survive_the_api_server_and_do_not_start_without_it() {
    let done: Result<()> = async {
        let mut server = start_process(&Options::default())?;
        let service = json!({
            "metadata": {"name": "web"},
            "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]},
        });
        server.admin.post("/api/v1/namespaces/default/services", &service).await?.expect(201)?;
        // A quiet watch has no events either: the limit is long enough to be ready first.
        let dns = DnsProcess::start(&server, &["--max-staleness", "5s"])?;
        let client = Client::at("127.0.0.1".parse()?, dns.address)?;
        ensure!(client.addresses(NAME)?.len() == 1);
        ensure!(get_plain(dns.ready, "/ready").await?.0 == 200);

        server.kill();
        let deadline = Instant::now() + TIMEOUT;
        // Each kind becomes stale separately, in any order.
        loop {
            ensure!(client.addresses(NAME)?.len() == 1, "the name disappeared with the API server");
            let (status, why) = get_plain(dns.ready, "/ready").await?;
            if status == 503 && why.contains("no services event for") {
                break;
            }
            ensure!(Instant::now() < deadline, "{status}, services are not named: {why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ensure!(client.addresses(NAME)?.len() == 1);

        // A second DNS server has no data, so it does not answer.
        let mut late = spawn(&server, &[])?;
        let said = BufReader::new(late.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let mut ready_at = None;
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(2)) {
            ensure!(!line.starts_with("answering"), "it answers without data: {line}");
            if let Some(address) = line.strip_prefix("serving /ready on http://") {
                ready_at = Some(address.parse::<SocketAddr>()?);
            }
        }
        let not_ready = get_plain(ready_at.unwrap(), "/ready").await;
        late.kill()?;
        late.wait()?;
        let (status, why) = not_ready?;
        ensure!(status == 503, "ready without an API server: {why}");
        Ok(())
    }
    .await;
    done.unwrap();
}
