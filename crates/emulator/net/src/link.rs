//! Devices, addresses and routes, by rtnetlink.
//!
//! When a call returns, links are running and addresses usable. [`delete`] and the end of the
//! namespace remove devices.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::{Namespace, NetError, netlink};

/// A MAC address.
pub(crate) type Mac = [u8; 6];

fn request<T: Send>(
    namespace: &Namespace,
    what: &str,
    work: impl AsyncFnOnce(Handle) -> io::Result<T> + Send,
) -> Result<T, NetError> {
    namespace.attempt(what, || netlink::here(work))
}

/// A veth pair: device `a_device` in `a`, `b_device` in `b`, both up.
/// Fails if a name is taken or too long (15 bytes).
pub fn veth(a: &Namespace, a_device: &str, b: &Namespace, b_device: &str) -> Result<(), NetError> {
    let what = format!("create veth `{a_device}` with its end `{b_device}` in `{}`", b.name());
    request(a, &what, async |handle| {
        let there = LinkUnspec::new_with_name(b_device).setns_by_fd(b.fd().as_raw_fd()).build();
        let pair = LinkVeth::new(a_device, b_device)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(there)))
            .up()
            .build();
        handle.link().add(pair).execute().await.map_err(netlink::cause)
    })?;
    request(b, &format!("set `{b_device}` up"), async |handle| {
        netlink::set_up(&handle, b_device).await?;
        netlink::wait_running(&handle, b_device).await
    })?;
    request(a, &format!("wait for `{a_device}`"), async |handle| {
        netlink::wait_running(&handle, a_device).await
    })
}

/// A bridge without ports, up.
/// Fails if the name is taken or too long (15 bytes).
pub fn bridge(namespace: &Namespace, device: &str) -> Result<(), NetError> {
    request(namespace, &format!("create bridge `{device}`"), async |handle| {
        // Snooping loses the first neighbour discovery on new ports.
        let bridge = LinkBridge::new(device).mcast_snooping(false).build();
        handle.link().add(bridge).execute().await.map_err(netlink::cause)
    })
}

/// Makes the device a port of the bridge.
/// Fails if one of them does not exist, or the device cannot be a port.
pub fn enslave(namespace: &Namespace, device: &str, bridge: &str) -> Result<(), NetError> {
    request(namespace, &format!("make `{device}` a port of `{bridge}`"), async |handle| {
        let port = LinkUnspec::new_with_name(device).controller(netlink::index(bridge)?).build();
        handle.link().set(port).execute().await.map_err(netlink::cause)?;
        match netlink::is_running(&netlink::get(&handle, device).await?) {
            true => netlink::wait_running(&handle, bridge).await,
            false => Ok(()),
        }
    })
}

/// Sets the device up.
/// Fails if it does not exist.
pub fn set_up(namespace: &Namespace, device: &str) -> Result<(), NetError> {
    request(namespace, &format!("set `{device}` up"), async |handle| {
        netlink::set_up(&handle, device).await
    })
}

/// Sets the device down. It keeps its addresses and its bridge.
/// Fails if it does not exist.
pub fn set_down(namespace: &Namespace, device: &str) -> Result<(), NetError> {
    request(namespace, &format!("set `{device}` down"), async |handle| {
        let message = LinkUnspec::new_with_name(device).down().build();
        handle.link().set(message).execute().await.map_err(netlink::cause)
    })
}

/// Deletes a device; for a veth also its peer.
/// Fails if it does not exist.
pub fn delete(namespace: &Namespace, device: &str) -> Result<(), NetError> {
    request(namespace, &format!("delete `{device}`"), async |handle| {
        let index = netlink::index(device)?;
        handle.link().del(index).execute().await.map_err(netlink::cause)
    })
}

/// The device's MAC address.
/// Fails if it does not exist, or has none.
pub fn mac(namespace: &Namespace, device: &str) -> Result<Mac, NetError> {
    request(namespace, &format!("read the link address of `{device}`"), async |handle| {
        let link = netlink::get(&handle, device).await?;
        let address = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => Mac::try_from(bytes.as_slice()).ok(),
            _ => None,
        });
        address.ok_or_else(|| io::Error::other("it has no MAC address"))
    })
}

/// Adds an address, usable at once.
/// Fails if there is no such device, or the address exists already.
pub fn add_address(
    namespace: &Namespace,
    device: &str,
    address: impl Into<IpNet>,
) -> Result<(), NetError> {
    let address = address.into();
    request(namespace, &format!("add address {address} to `{device}`"), async move |handle| {
        let index = netlink::index(device)?;
        let mut request = handle.address().add(index, address.addr(), address.prefix_len());
        let flags = AddressAttribute::Flags(AddressFlags::Nodad);
        request.message_mut().attributes.push(flags);
        request.execute().await.map_err(netlink::cause)
    })
}

/// Adds a route to `to` through the device, with the gateway `via` or on-link. The gateway need not
/// be in a network of the device.
/// Fails if there is no such device, the route exists already, or the families differ.
pub fn add_route(
    namespace: &Namespace,
    to: impl Into<IpNet>,
    via: Option<IpAddr>,
    device: &str,
) -> Result<(), NetError> {
    let to = to.into();
    let by = via.map(|via| format!(" via {via}")).unwrap_or_default();
    request(namespace, &format!("add route {to}{by} dev `{device}`"), async move |handle| {
        let message = route(to, via, netlink::index(device)?)?;
        handle.route().add(message).execute().await.map_err(netlink::cause)
    })
}

fn route(to: IpNet, via: Option<IpAddr>, device: u32) -> io::Result<RouteMessage> {
    if via.is_some_and(|via| via.is_ipv4() != to.addr().is_ipv4()) {
        let what = "the destination and the gateway are of two families";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let builder = RouteMessageBuilder::<IpAddr>::new().output_interface(device);
    let builder = builder.destination_prefix(to.network(), to.prefix_len());
    let builder = builder.map_err(io::Error::other)?;
    Ok(match via {
        Some(via) => builder.gateway(via).map_err(io::Error::other)?.onlink().build(),
        None => builder.scope(RouteScope::Link).build(),
    })
}

/// Adds a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
/// Fails if there is no such device.
pub fn add_neighbour(
    namespace: &Namespace,
    device: &str,
    neighbour: IpAddr,
    mac: Mac,
) -> Result<(), NetError> {
    request(namespace, &format!("add neighbour {neighbour} on `{device}`"), async move |handle| {
        let index = netlink::index(device)?;
        // Permanent by default.
        let request = handle.neighbours().add(index, neighbour).link_layer_address(&mac);
        request.replace().execute().await.map_err(netlink::cause)
    })
}
