//! Tests of the chains that the proxy writes for Services, in both families.

use std::collections::BTreeSet;

use nearhop_netfilter::affinity::{Maps, Reach, define_map, map_name};
use nearhop_netfilter::chain::{Mark, OnDemand, Pick, Recording, Stay};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::draw::Draw;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::Chain;

use super::*;

/// The whole table without elements, with every kind of chain on demand.
fn whole_layout(family: Family) -> Vec<Op> {
    let config = Config::new(family);
    let mut ops = vec![add_table()];
    ops.extend(SetId::ALL.map(|id| Op::AddSet(id.define(family))));
    let maps = [
        SetId::Endpoints,
        SetId::EndpointsLocal,
        SetId::NodeportEndpoints,
        SetId::NodeportEndpointsLocal,
    ];
    let mut chains = BTreeSet::new();
    for from in maps {
        for mark in [Mark::No, Mark::Yes] {
            for draw in [Draw::Even(3), Draw::by_weight(&[(3, 1), (2, 4)])] {
                let pick = OnDemand::Pick(Pick { from, first: 0, draw, mark });
                chains.extend(pick.with_needed());
            }
        }
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let port = Name::from(format!("default/web/{protocol:?}"));
        for reach in [Reach::Cluster, Reach::Local] {
            ops.push(Op::AddSet(define_map(map_name(&port, reach), family)));
            for mark in [Mark::No, Mark::Yes] {
                let stay = Stay { port: port.clone(), protocol, reach, mark };
                chains.insert(OnDemand::Stay(stay));
            }
        }
        let recording = Recording { port, protocol, seconds: 10_800, maps: Maps::Both };
        chains.insert(OnDemand::Record(recording));
    }
    let chains: Vec<Chain> = chains.iter().map(|chain| chain.chain(&config)).collect();
    // Add all chains first, then rules: a rule may refer to a later chain.
    ops.extend(chains.iter().cloned().map(|all| Op::AddChain(Chain { rules: Vec::new(), ..all })));
    ops.extend(chains.into_iter().map(Op::AddChain));
    ops.extend(
        DesiredTable::new(std::sync::Arc::new(config)).chains().into_iter().map(Op::AddChain),
    );
    ops
}

#[test]
fn the_fake_accepts_every_chain_in_both_families() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let table = Config::new(family).table;
        let applied = Fake::new().apply(&batch(&table, whole_layout(family)));
        assert_eq!(applied, Ok(()), "{family:?}");
    }
}
