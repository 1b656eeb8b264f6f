//! Leader election against the embedded API.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::proxy::{Cut, Proxy};
use http::Request;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use nearhop_runtime::client::connect;
use nearhop_runtime::lease::{Elector, Leadership, LeaseOptions};
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than any wait in a test, even on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn options(identity: &str) -> LeaseOptions {
    LeaseOptions {
        identity: identity.to_owned(),
        lease_duration: Duration::from_millis(3000),
        renew_deadline: Duration::from_millis(2200),
        retry_period: Duration::from_millis(200),
        ..LeaseOptions::new("kube-system", "nearhop-controller", "host")
    }
}

/// Options with which no lease expires during a test, even on a busy machine.
fn patient(identity: &str) -> LeaseOptions {
    LeaseOptions {
        lease_duration: Duration::from_secs(60),
        renew_deadline: Duration::from_secs(40),
        ..options(identity)
    }
}

struct Candidate {
    leadership: watch::Receiver<Leadership>,
    trigger: Trigger,
    task: JoinHandle<()>,
    metrics: Metrics,
}

impl Candidate {
    async fn start(cluster: &Cluster, options: LeaseOptions) -> Self {
        Self::start_with(client(cluster).await, options)
    }

    fn start_with(client: Client, options: LeaseOptions) -> Self {
        let metrics = Metrics::new();
        let elector = Elector::new(client, options, Some(&metrics)).expect("the options are valid");
        let leadership = elector.leadership();
        let (trigger, shutdown) = Shutdown::manual();
        Self { leadership, trigger, task: tokio::spawn(elector.run(shutdown)), metrics }
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().is_valid(Instant::now())
    }

    async fn wait_for(&mut self, leading: impl FnMut(&Leadership) -> bool) {
        timeout(LONG, self.leadership.wait_for(leading))
            .await
            .expect("the leadership changes in time")
            .expect("the elector runs");
    }

    async fn wait_to_lead(&mut self) {
        self.wait_for(|now| matches!(now, Leadership::Leading { .. })).await;
    }

    async fn wait_for_standby(&mut self) {
        self.wait_for(|now| *now == Leadership::Standby).await;
    }

    fn status(&self) -> bool {
        self.metrics
            .encode()
            .contains("leader_election_master_status{name=\"nearhop-controller\"} 1\n")
    }
}

async fn client(cluster: &Cluster) -> Client {
    connect(&cluster.options(), None).await.expect("the kubeconfig is valid")
}

async fn spec(cluster: &Cluster) -> LeaseSpec {
    let leases: Api<Lease> = Api::namespaced(client(cluster).await, "kube-system");
    leases.get("nearhop-controller").await.expect("the Lease exists").spec.expect("it has a spec")
}

async fn set_faults(client: &Client, faults: &str) {
    let request = Request::post("/nearhop/faults").body(faults.as_bytes().to_vec());
    let request = request.expect("the path is valid");
    client.request_text(request).await.expect("the API server accepts the faults");
}

/// Asserts that at no time during `period` two candidates lead.
async fn assert_at_most_one_leads(candidates: &[Candidate], period: Duration) {
    let start = Instant::now();
    while start.elapsed() < period {
        let leading = candidates.iter().filter(|candidate| candidate.leads()).count();
        assert!(leading <= 1, "{leading} candidates lead");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_candidates_leads_and_renews() {
    let cluster = Cluster::start().await;
    let mut candidates = Vec::new();
    for identity in ["a", "b", "c"] {
        candidates.push(Candidate::start(&cluster, patient(identity)).await);
    }
    assert_at_most_one_leads(&candidates, Duration::from_secs(3)).await;
    let leading: Vec<usize> = (0..3).filter(|n| candidates[*n].leads()).collect();
    assert_eq!(leading.len(), 1);
    let spec = spec(&cluster).await;
    assert_eq!(spec.holder_identity.as_deref(), Some(["a", "b", "c"][leading[0]]));
    assert_eq!(spec.lease_transitions, Some(0), "a renewal is not a transition");
    assert!(spec.renew_time > spec.acquire_time);
    for (n, candidate) in candidates.iter().enumerate() {
        assert_eq!(candidate.status(), n == leading[0], "the metric of candidate {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_holder_is_replaced_after_its_lease_expires() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    let mut b = Candidate::start(&cluster, options("b")).await;
    sleep(Duration::from_millis(500)).await;
    assert!(a.leads() && !b.leads());
    let Leadership::Leading { until } = *a.leadership.borrow() else { panic!("a leads") };
    a.task.abort();
    let _ = (&mut a.task).await;
    assert!(!a.leads(), "an aborted elector no longer leads");
    b.wait_to_lead().await;
    assert!(Instant::now() > until, "b led before a had to stop");
    let spec = spec(&cluster).await;
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_lease_is_acquired_at_once() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, patient("a")).await;
    a.wait_to_lead().await;
    let mut b = Candidate::start(&cluster, patient("b")).await;
    a.trigger.request();
    (&mut a.task).await.unwrap();
    assert!(!a.leads());
    b.wait_to_lead().await;
    b.trigger.request();
    (&mut b.task).await.unwrap();
    let spec = spec(&cluster).await;
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(1), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_cannot_renew_stops_and_later_leads_again() {
    let cluster = Cluster::start().await;
    let client = client(&cluster).await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    // First an error, then no reply: only a timeout ends that request.
    for fault in [r#"{"answer":{"code":500,"share":1.0}}"#, r#"{"timeout":{"share":1.0}}"#] {
        set_faults(&client, fault).await;
        a.wait_for_standby().await;
        assert!(!a.status());
        set_faults(&client, "{}").await;
        a.wait_to_lead().await;
    }
    assert_eq!(spec(&cluster).await.lease_transitions, Some(0), "a held the Lease all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_one_candidate_leads_despite_server_faults() {
    let cluster = Cluster::start().await;
    let client = client(&cluster).await;
    let mut candidates = Vec::new();
    for identity in ["a", "b", "c"] {
        candidates.push(Candidate::start(&cluster, options(identity)).await);
    }
    for fault in [
        r#"{"answer":{"code":409,"share":0.6}}"#,
        r#"{"timeout":{"share":0.5}}"#,
        r#"{"delayMs":500}"#,
        r#"{"restart":true}"#,
    ] {
        set_faults(&client, fault).await;
        assert_at_most_one_leads(&candidates, Duration::from_millis(2500)).await;
    }
    while !candidates.iter().any(Candidate::leads) {
        assert_at_most_one_leads(&candidates, Duration::from_millis(100)).await;
    }
}

/// A disconnected holder stops before another process leads, even if its renewals still arrive
/// and only the replies are lost. Requests that arrive late change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_holder_stops_before_another_leads() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::start(cluster.server.address()).await;
    let by_proxy = connect(&cluster.options_through(proxy.address), None).await.unwrap();
    let mut a = Candidate::start_with(by_proxy, options("a"));
    for cut in [Cut::Everything, Cut::Answers] {
        a.wait_to_lead().await;
        let b = Candidate::start(&cluster, options("b")).await;
        sleep(Duration::from_millis(500)).await;
        proxy.cut(cut);
        let mut pair = [a, b];
        let start = Instant::now();
        while !pair[1].leads() {
            assert_at_most_one_leads(&pair, Duration::from_millis(20)).await;
            assert!(start.elapsed() < LONG, "b does not lead in time");
        }
        assert_at_most_one_leads(&pair, Duration::from_secs(1)).await;
        proxy.cut(Cut::Nothing);
        assert_at_most_one_leads(&pair, Duration::from_secs(2)).await;
        assert!(pair[1].leads(), "a late request of a took the Lease from b");
        pair[1].trigger.request();
        (&mut pair[1].task).await.unwrap();
        [a, _] = pair;
    }
    a.wait_to_lead().await;
}

/// Other clients change the Lease, so the resourceVersion that the holder has is outdated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_leading_after_foreign_changes_of_the_lease() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, patient("a")).await;
    a.wait_to_lead().await;
    let leases: Api<Lease> = Api::namespaced(client(&cluster).await, "kube-system");
    for n in 0..5 {
        let patch = Patch::Merge(labelled(n));
        leases.patch("nearhop-controller", &PatchParams::default(), &patch).await.unwrap();
        let before = Instant::now() + patient("a").renew_deadline;
        // Standby also ends the wait, and then fails the test.
        a.wait_for(|now| !matches!(now, Leadership::Leading { until } if *until <= before)).await;
        assert!(a.leads(), "a lost the lease after foreign change {n}");
    }
}

fn labelled(n: u32) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.labels = Some([("touched".to_owned(), n.to_string())].into());
    lease
}

#[tokio::test]
async fn without_permission_or_namespace_the_candidate_stays_on_standby() {
    let cluster = Cluster::start().await;
    let nowhere = LeaseOptions { namespace: "nowhere".to_owned(), ..options("a") };
    let a = Candidate::start(&cluster, nowhere).await;
    let mut looking = cluster.options();
    looking.context = Some("read-only".to_owned());
    let client = connect(&looking, None).await.unwrap();
    let elector = Elector::new(client, options("b"), None).unwrap();
    let leadership = elector.leadership();
    let (_trigger, shutdown) = Shutdown::manual();
    let b = tokio::spawn(elector.run(shutdown));
    sleep(Duration::from_secs(1)).await;
    assert!(!a.leads() && !a.task.is_finished());
    assert_eq!(*leadership.borrow(), Leadership::Standby);
    assert!(!b.is_finished());
}

#[tokio::test]
async fn the_holder_stops_leading_when_the_server_stops() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    cluster.server.stop().await;
    a.wait_for_standby().await;
    a.trigger.request();
    timeout(LONG, &mut a.task).await.expect("the elector ends without a server").unwrap();
}
