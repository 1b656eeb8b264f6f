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

/// Nothing expires within a test, however busy the machine is.
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
        timeout(LONG, self.leadership.wait_for(leading)).await.expect("in time").expect("it runs");
    }

    async fn wait_to_lead(&mut self) {
        self.wait_for(|now| matches!(now, Leadership::Leading { .. })).await;
    }

    async fn wait_to_stand_by(&mut self) {
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
    leases.get("nearhop-controller").await.expect("there is a Lease").spec.expect("it has a spec")
}

async fn inflict(client: &Client, faults: &str) {
    let request = Request::post("/nearhop/faults").body(faults.as_bytes().to_vec());
    let request = request.expect("the path is valid");
    client.request_text(request).await.expect("faults can be ordered");
}

/// Asserts that at no time during `period` two candidates lead.
async fn never_two_lead(candidates: &[Candidate], period: Duration) {
    let start = Instant::now();
    while start.elapsed() < period {
        let leading = candidates.iter().filter(|candidate| candidate.leads()).count();
        assert!(leading <= 1, "{leading} lead");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_leads_and_goes_on_leading() {
    let cluster = Cluster::start().await;
    let mut candidates = Vec::new();
    for identity in ["a", "b", "c"] {
        candidates.push(Candidate::start(&cluster, patient(identity)).await);
    }
    never_two_lead(&candidates, Duration::from_secs(3)).await;
    let leading: Vec<usize> = (0..3).filter(|n| candidates[*n].leads()).collect();
    assert_eq!(leading.len(), 1);
    let spec = spec(&cluster).await;
    assert_eq!(spec.holder_identity.as_deref(), Some(["a", "b", "c"][leading[0]]));
    assert_eq!(spec.lease_transitions, Some(0), "renewing is no transition");
    assert!(spec.renew_time > spec.acquire_time);
    for (n, candidate) in candidates.iter().enumerate() {
        assert_eq!(candidate.status(), n == leading[0], "the metric of {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_vanishes_is_replaced_when_its_lease_is_over() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    let mut b = Candidate::start(&cluster, options("b")).await;
    sleep(Duration::from_millis(500)).await;
    assert!(a.leads() && !b.leads());
    let Leadership::Leading { until } = *a.leadership.borrow() else { panic!("a leads") };
    a.task.abort();
    let _ = (&mut a.task).await;
    assert!(!a.leads(), "nobody believes an aborted task");
    b.wait_to_lead().await;
    assert!(Instant::now() > until, "b led before a had to stop");
    let spec = spec(&cluster).await;
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_given_back_is_taken_at_once() {
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
async fn a_holder_that_cannot_renew_stops_and_comes_back() {
    let cluster = Cluster::start().await;
    let client = client(&cluster).await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    // First an error, then no reply at all: only a timer can end that request.
    for fault in [r#"{"answer":{"code":500,"share":1.0}}"#, r#"{"timeout":{"share":1.0}}"#] {
        inflict(&client, fault).await;
        a.wait_to_stand_by().await;
        assert!(!a.status());
        inflict(&client, "{}").await;
        a.wait_to_lead().await;
    }
    assert_eq!(spec(&cluster).await.lease_transitions, Some(0), "it was its own all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_lead_while_the_server_misbehaves() {
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
        inflict(&client, fault).await;
        never_two_lead(&candidates, Duration::from_millis(2500)).await;
    }
    while !candidates.iter().any(Candidate::leads) {
        never_two_lead(&candidates, Duration::from_millis(100)).await;
    }
}

/// A holder that is cut off stops before another process leads, even if its renewals still arrive
/// and only the replies are lost. Requests that arrive late change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_stops_before_another_begins() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::start(cluster.server.address()).await;
    let by_proxy = connect(&cluster.options_by_way_of(proxy.address), None).await.unwrap();
    let mut a = Candidate::start_with(by_proxy, options("a"));
    for cut in [Cut::Everything, Cut::Answers] {
        a.wait_to_lead().await;
        let b = Candidate::start(&cluster, options("b")).await;
        sleep(Duration::from_millis(500)).await;
        proxy.cut(cut);
        let mut pair = [a, b];
        let start = Instant::now();
        while !pair[1].leads() {
            never_two_lead(&pair, Duration::from_millis(20)).await;
            assert!(start.elapsed() < LONG, "b never leads");
        }
        never_two_lead(&pair, Duration::from_secs(1)).await;
        proxy.cut(Cut::Nothing);
        never_two_lead(&pair, Duration::from_secs(2)).await;
        assert!(pair[1].leads(), "what arrived late took the lease away");
        pair[1].trigger.request();
        (&mut pair[1].task).await.unwrap();
        [a, _] = pair;
    }
    a.wait_to_lead().await;
}

/// An update succeeds but its reply is lost, so the holder knows an old resourceVersion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_a_version_it_does_not_know() {
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
        assert!(a.leads(), "after {n} changes of others");
    }
}

fn labelled(n: u32) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.labels = Some([("touched".to_owned(), n.to_string())].into());
    lease
}

#[tokio::test]
async fn without_rights_or_a_namespace_it_stands_by() {
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
async fn the_end_of_the_server_is_the_end_of_leading() {
    let cluster = Cluster::start().await;
    let mut a = Candidate::start(&cluster, options("a")).await;
    a.wait_to_lead().await;
    cluster.server.stop().await;
    a.wait_to_stand_by().await;
    a.trigger.request();
    timeout(LONG, &mut a.task).await.expect("it ends without a server, too").unwrap();
}
