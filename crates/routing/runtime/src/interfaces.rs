//! The IP addresses of this machine's network interfaces.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The current addresses of this machine; empty if the kernel does not return them.
pub fn addresses() -> BTreeSet<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return BTreeSet::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    };
    interfaces.filter_map(address).collect()
}
