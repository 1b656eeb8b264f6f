//! Any bytes are handled without a panic, and every reply is a message within its size limit that
//! another implementation can decode.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use hickory_proto::op::Message;
use libfuzzer_sys::fuzz_target;
use nearhop_core::answer::{Config, Index, PodMode, Synced, Zone};
use nearhop_core::fixture::Fixture;
use nearhop_dns::answerer::{Answerer, Handled, Now, Packet};
use nearhop_dns::forward::Cache;
use nearhop_dns::metrics::{DnsMetrics, Tally};
use nearhop_dns::options::Options;
use nearhop_dns::state::State;
use nearhop_dns::wire::{ReplyWriter, Transport};
use nearhop_runtime::metrics::Metrics;

const CLUSTER: &str = "namespace default
node a zone=za pod-cidr=10.244.1.0/24
service web port=http:80->8080
service db port=pg:5432 cluster-ip=None topology-keys=topology.kubernetes.io/zone,*
pods web x3 for=web on=a
pods db x40 for=db on=a hostname=h subdomain=db
service out type=ExternalName no-ports cluster-ip=\"\"
";

struct Server {
    answerer: Answerer,
    state: State,
    tally: Tally,
    out: ReplyWriter,
}

fn server() -> Server {
    let mut config = Config::new(Zone::parse("cluster.local").expect("a name"));
    config.zones.extend(["in-addr.arpa", "ip6.arpa"].map(|zone| Zone::parse(zone).expect("a name")));
    config.pods = PodMode::Insecure;
    let mut options = Options::new(config);
    options.forwarders.trusted = vec![nearhop_core::Cidr::new([10, 244, 1, 0].into(), 24)];
    options.error_rate = 0;
    let world = Fixture::parse(CLUSTER).expect("a cluster").world(options.settings());
    let index = Index::build(&world);
    let metrics = DnsMetrics::new(&Metrics::new(), "dns://:53");
    let cache = Arc::new(Cache::new(10, metrics.clone()));
    Server {
        answerer: Answerer::new(&options, Some(cache), [7; 16], Instant::now()),
        state: State { world, index, serial: 1, synced: Synced::Yes },
        tally: metrics.tally(),
        out: ReplyWriter::default(),
    }
}

thread_local! {
    static SERVER: RefCell<Server> = RefCell::new(server());
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, packet)) = bytes.split_first() else { return };
    let transport = if first & 1 == 0 { Transport::Udp } else { Transport::Tcp };
    let source = [10, 244, 1 + (first >> 1 & 1), 9].into();
    let now = Now { instant: Instant::now(), unix: 1_700_000_000 };
    SERVER.with_borrow_mut(|server| {
        let Server { answerer, state, tally, out } = server;
        let seed = u64::from(*first);
        let asked = Packet { bytes: packet, source, transport, now, seed };
        let handled = match answerer.handle(state, asked, out, tally) {
            Handled::Forward(query) => answerer.finish(&query, None, now.instant, out, tally),
            handled => handled,
        };
        if let Handled::Reply = handled {
            let most = if transport == Transport::Udp { 1232 } else { 65_535 };
            assert!(out.bytes().len() <= most);
            let reply = Message::from_vec(out.bytes()).expect("a message");
            assert_eq!(reply.metadata.id.to_be_bytes(), packet[..2]);
        }
    });
});
