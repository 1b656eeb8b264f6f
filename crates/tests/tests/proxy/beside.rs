//! Two proxies on one node: nearhop serves the Services with the label, and kube-proxy the others.
//! Neither affects the other.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use nearhop_core::{Family, Name};
use nearhop_net::Namespace;
use nearhop_net::traffic::{Client, Outcome, Protocol as Transport};
use nearhop_netfilter::object::{
    Base, Batch, CT_STATE_NEW, Chain, ChainKind, CmpOp, CtKey, Expr, Field, Hit, Hook, HookPoint,
    Op, Reg, Rule, Set, SetData, SetKind, Table, Verdict,
};
use nearhop_proxy::kernel::Kernel;
use nearhop_tests::node::objects::{Endpoint, Frontends, Port};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::{Api, CLUSTER_CIDR, NODE, Site, TIMEOUT, run, until};
use nearhop_tests::server::{binary, start_daemon};
use serde_json::json;

const LABEL: &str = "service.kubernetes.io/service-proxy-name";

fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

/// `ct state new jump cluster-ips-check`.
fn check_new() -> Rule {
    rule(vec![
        Expr::Ct { key: CtKey::State, to: Reg(0) },
        Expr::Bitwise {
            from: Reg(0),
            to: Reg(0),
            mask: CT_STATE_NEW.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        Expr::Cmp { from: Reg(0), op: CmpOp::Neq, with: vec![0; 4] },
        Expr::Verdict(Verdict::Jump(Name::from("cluster-ips-check"))),
    ])
}

/// Loads the table of a kube-proxy that serves other Services: it drops packets to all cluster IPs
/// that are not in its set `cluster-ips`. `priorities` are those of its checks on forward and output.
fn load_kube_proxy(priorities: (i32, i32)) -> Result<()> {
    let table = Table { family: Family::Ipv4, name: Name::from("kube-proxy") };
    let destination = || Expr::Payload { base: Base::Network, offset: 16, len: 4, to: Reg(0) };
    let set = Set {
        name: Name::from("cluster-ips"),
        key: vec![Field::Address(Family::Ipv4)],
        data: SetData::None,
        kind: SetKind::Exact,
        comment: None,
    };
    let known = Expr::Lookup { set: set.name.clone(), from: Reg(0), then: Hit::Match };
    let check = Chain {
        name: Name::from("cluster-ips-check"),
        hook: None,
        rules: vec![
            rule(vec![destination(), known, Expr::Reject(Family::Ipv4)]),
            rule(vec![
                destination(),
                Expr::Bitwise {
                    from: Reg(0),
                    to: Reg(0),
                    mask: vec![255, 240, 0, 0],
                    xor: vec![0; 4],
                },
                Expr::Cmp { from: Reg(0), op: CmpOp::Eq, with: vec![10, 96, 0, 0] },
                Expr::Verdict(Verdict::Drop),
            ]),
        ],
        comment: None,
    };
    let base = |name: &str, point, priority| {
        let hook = Some(Hook { kind: ChainKind::Filter, point, priority });
        Op::AddChain(Chain {
            name: Name::from(name),
            hook,
            rules: vec![check_new()],
            comment: None,
        })
    };
    let ops = vec![
        Op::AddTable { comment: Name::from("rules for kube-proxy") },
        Op::AddSet(set),
        Op::AddChain(check),
        base("filter-forward", HookPoint::Forward, priorities.0),
        base("filter-output", HookPoint::Output, priorities.1),
    ];
    Ok(Kernel::open()?.apply(&Batch { table, ops })?)
}

async fn labelled(site: &Site) -> Result<Frontends> {
    site.create_node(NODE, None).await?;
    let metadata = json!({"labels": {LABEL: "nearhop"}});
    site.create_service("web", &metadata, "ClusterIP", &json!({})).await
}

fn outcome(from: &Namespace, service: &Frontends) -> Result<Outcome> {
    let to = service.cluster(Port::Web)?;
    Ok(Client::new(from, Transport::Tcp, to, TIMEOUT, None)?.ask()?)
}

async fn refused_beside(site: &Site, priorities: (i32, i32)) -> Result<()> {
    load_kube_proxy(priorities)?;
    let service = labelled(site).await?;
    let proxy = ProxyProcess::start(site, &["--service-proxy-name", "nearhop"])?;
    until("the proxy serves web", || {
        Ok(proxy.describe("web")?.map(drop).ok_or("it does not".to_owned()))
    })?;
    for from in [&site.client, site.star.node()] {
        let outcome = outcome(from, &service)?;
        ensure!(outcome == Outcome::Refused, "from {}: {outcome:?}", from.name());
    }
    Ok(())
}

#[test]
fn a_service_without_endpoints_is_refused_and_not_dropped() {
    let name = "beside::a_service_without_endpoints_is_refused_and_not_dropped";
    run(name, Api::Memory, async |site| refused_beside(site, (0, 0)).await);
}

/// An older kube-proxy has its checks at other priorities.
#[test]
fn a_service_without_endpoints_is_refused_beside_an_older_kube_proxy() {
    let name = "beside::a_service_without_endpoints_is_refused_beside_an_older_kube_proxy";
    run(name, Api::Memory, async |site| refused_beside(site, (-110, -90)).await);
}

/// The cluster IP ranges contain the Services of the other proxy, too.
#[test]
fn services_of_the_other_proxy_are_not_dropped() {
    let name = "beside::services_of_the_other_proxy_are_not_dropped";
    run(name, Api::Memory, async |site| -> Result<()> {
        let pod = site.pod("10.244.1.1")?;
        labelled(site).await?;
        let theirs = site.create_cluster_ip("theirs", &json!({})).await?.cluster(Port::Web)?;
        site.create_slice("theirs", &[Endpoint::here(pod)]).await?;
        // This proxy has the role of kube-proxy.
        let other = ProxyProcess::start(site, &["--table", "other"])?;
        other.until_programmed("theirs", &[pod])?;
        let range = ["--service-cluster-ip-range", "10.96.0.0/12"];
        let arguments = [&["--service-proxy-name", "nearhop"], &range[..]].concat();
        let ours = ProxyProcess::launch(site, &arguments)?;
        ours.until_ready()?;
        for from in [&site.client, site.star.node()] {
            ensure!(site.connect(from, theirs)? == pod, "from {}", from.name());
        }
        Ok(())
    });
}

/// Starts a proxy without port flags; it fails if a port is in use.
fn start_with_default_ports(
    site: &Site,
    arguments: &[&str],
) -> Result<(std::process::Child, std::net::SocketAddr)> {
    let mut command = Command::new(binary()?);
    command.args(["proxy", "--hostname-override", NODE, "--cluster-cidr", CLUSTER_CIDR]);
    command.arg("--bind-address-hard-fail").arg("--kubeconfig").arg(&site.kubeconfig);
    command.args(arguments);
    start_daemon(&mut command).with_context(|| format!("{arguments:?}"))
}

#[test]
fn default_ports_differ_from_kube_proxys() {
    run("beside::default_ports_differ_from_kube_proxys", Api::Memory, async |site| -> Result<()> {
        // This proxy has the role of kube-proxy, and kube-proxy's ports.
        let (mut first, first_at) = start_with_default_ports(site, &["--table", "first"])?;
        let second = start_with_default_ports(site, &["--service-proxy-name", "nearhop"]);
        let running = first.try_wait()?.is_none();
        first.kill()?;
        first.wait()?;
        let (mut second, second_at) = second?;
        second.kill()?;
        second.wait()?;
        ensure!(running && first_at.port() == 10249 && second_at.port() == 10269);
        Ok(())
    });
}
