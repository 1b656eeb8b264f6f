//! The addresses of this machine, as its interfaces have them now.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses of this machine; none where the kernel does not say.
pub fn addresses() -> BTreeSet<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return BTreeSet::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    };
    interfaces.filter_map(address).collect()
}
