//! The chains that Services really bring, in both families.

use crate::chain::{Mark, OnDemand, Pick, Sticky};
use crate::config::Config;
use crate::draw::Draw;
use crate::image::Image;
use crate::layout::SetId;

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
        for (sticky, mark) in
            [(Sticky::No, Mark::No), (Sticky::Yes, Mark::No), (Sticky::Yes, Mark::Yes)]
        {
            for draw in [Draw::Even(3), Draw::by_weight(&[(3, 1), (2, 4)])] {
                let pick = OnDemand::Pick(Pick { from, draw, sticky, mark });
                ops.push(Op::AddChain(pick.chain(&config)));
            }
        }
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        ops.push(Op::AddChain(OnDemand::Record(protocol, 10_800).chain(&config)));
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
