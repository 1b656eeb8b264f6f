//! Against the real kernel: the layout loads, lists as it was written, and the nft program prints
//! it, reads what it printed, and prints the same.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use nearhop_core::Family;
use nearhop_netfilter::object::*;
use nearhop_proxy::kernel::Kernel;
use support::*;

fn loads(kernel: &mut Kernel, family: Family) -> Table {
    let table = table(family, "nearhop");
    kernel.apply(&batch(&table, layout(family))).unwrap();
    table
}

/// nft's words, reload, again nft's words.
fn survives_nft() {
    let Some(first) = nft(&["list", "ruleset"], "") else { return };
    let first: String =
        first.lines().filter(|line| !beyond_nft(line)).collect::<Vec<_>>().join("\n");
    nft(&["flush", "ruleset"], "").unwrap();
    nft(&["-f", "-"], &first).unwrap();
    assert_eq!(nft(&["list", "ruleset"], "").unwrap().trim_end(), first);
}

/// The kernel has registers enough for two IPv6 addresses and a third one beside them, and nft
/// prints the rule; but nft 1.0.6 leaves gaps when it gives registers out, and aborts.
fn beyond_nft(line: &str) -> bool {
    line.contains("update @affinity { ct original ip6 saddr")
}

#[test]
fn ipv4() {
    in_namespace(|kernel| {
        loads(kernel, Family::Ipv4);
        survives_nft();
    });
}

#[test]
fn ipv6() {
    in_namespace(|kernel| {
        loads(kernel, Family::Ipv6);
        survives_nft();
    });
}
