//! The chains that Services really bring, in both families.

use nearhop_netfilter::affinity::{Maps, Reach, define_map, map_name};
use nearhop_netfilter::chain::{Mark, OnDemand, Pick, Recording, Stay};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::draw::Draw;
use nearhop_netfilter::image::Image;
use nearhop_netfilter::layout::SetId;

use super::*;

/// Everything in the table but elements, with every kind of chain on demand.
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
    for from in maps {
        for mark in [Mark::No, Mark::Yes] {
            for draw in [Draw::Even(3), Draw::by_weight(&[(3, 1), (2, 4)])] {
                let pick = OnDemand::Pick(Pick { from, draw, mark });
                ops.push(Op::AddChain(pick.chain(&config)));
            }
        }
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let port = Name::from(format!("default/web/{protocol:?}"));
        for reach in [Reach::Cluster, Reach::Local] {
            ops.push(Op::AddSet(define_map(map_name(&port, reach), family)));
            for mark in [Mark::No, Mark::Yes] {
                let stay = Stay { port: port.clone(), protocol, reach, mark };
                ops.push(Op::AddChain(OnDemand::Stay(stay).chain(&config)));
            }
        }
        let recording = Recording { port, protocol, seconds: 10_800, maps: Maps::Both };
        ops.push(Op::AddChain(OnDemand::Record(recording).chain(&config)));
    }
    ops.extend(Image::new(std::sync::Arc::new(config)).chains().into_iter().map(Op::AddChain));
    ops
}

#[test]
fn every_chain_fits_the_registers_in_both_families() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let table = Config::new(family).table;
        let applied = Fake::new().apply(&batch(&table, whole_layout(family)));
        assert_eq!(applied, Ok(()), "{family:?}");
    }
}
