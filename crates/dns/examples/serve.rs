//! A server for `dnsperf`: the cluster of the benches, on real sockets, without an API.
//!
//! `cargo run --release -p nearhop-dns --example serve -- 127.0.0.1:5399 1 > queries.txt`: where,
//! with how many threads. It prints names to ask for, and answers until its input ends. The second
//! half of `queries.txt` are names of headless Services. Questions come from 127.0.0.1, which is
//! made a Pod on the first node.

#[path = "../benches/cluster/mod.rs"]
mod cluster;

use std::error::Error;
use std::io::{Read as _, Write as _};

use cluster::{SERVICES, build, locators, options, service_name};
use nearhop_core::Change;
use nearhop_core::model::{Addresses, Locator};
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::Listen;
use nearhop_dns::serve::Server;
use nearhop_dns::state::Shared;
use nearhop_runtime::metrics::Metrics;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("where to listen?")?.parse()?;
    let threads = arguments.next().ok_or("how many threads?")?.parse()?;
    let (mut state, fixture) = build();
    let mut changes = locators(&fixture);
    if let Some(Change::Locator(first)) = changes.first().cloned() {
        let ips = Addresses::One([127, 0, 0, 1].into());
        changes.push(Change::Locator(Box::new(Locator { ips, ..*first })));
    }
    drop(fixture);
    state.apply(changes, 1_700_000_000);
    let mut options = options();
    options.listen = Listen::At(vec![address]);
    options.threads = threads;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let _inside = runtime.enter();
    let metrics = DnsMetrics::new(&Metrics::new(), &options.listen.label());
    let server = Server::start(&options, Shared::new(state), metrics)?;
    let mut out = std::io::stdout().lock();
    for parity in [0, 1] {
        for number in (0..SERVICES).filter(|number| number % 2 == parity) {
            writeln!(out, "{} A", service_name(number))?;
        }
    }
    out.flush()?;
    // Until whoever started it is done.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(server.stop());
    Ok(())
}
