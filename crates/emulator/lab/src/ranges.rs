//! Address ranges of a lab: one range of each family for nodes, Pods and Services.
//!
//! They exist only in the lab's namespaces, so they may overlap with those of the machine or another
//! lab, but not with each other.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::LabError;

/// Two ranges, one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dual {
    /// IPv4.
    pub v4: Ipv4Net,
    /// IPv6.
    pub v6: Ipv6Net,
}

impl FromStr for Dual {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text}: expected one range of each family, such as 10.244.0.0/16,fd00:10:244::/48"
            )
        };
        let (first, second) = text.split_once(',').ok_or_else(wrong)?;
        let read = |part: &str| part.trim().parse::<IpNet>().map_err(|_| wrong());
        match (read(first)?, read(second)?) {
            (IpNet::V4(v4), IpNet::V6(v6)) | (IpNet::V6(v6), IpNet::V4(v4)) => {
                Ok(Self { v4: v4.trunc(), v6: v6.trunc() })
            }
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for Dual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.v4, self.v6)
    }
}

impl Dual {
    fn both(&self) -> [IpNet; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// The address at this offset of each range; None if a range is too small.
    pub(crate) fn at(&self, place: u32) -> Option<[IpAddr; 2]> {
        let v4 = u32::from(self.v4.network()).checked_add(place)?;
        let v6 = u128::from(self.v6.network()).checked_add(place.into())?;
        let (v4, v6) = (std::net::Ipv4Addr::from(v4), std::net::Ipv6Addr::from(v6));
        let inside = self.v4.contains(&v4) && v4 != self.v4.broadcast() && self.v6.contains(&v6);
        inside.then_some([v4.into(), v6.into()])
    }

    /// The `n`th subrange of each range, for the Pods of one node.
    pub(crate) fn subrange(&self, n: u32) -> Option<[IpNet; 2]> {
        let v4 = self.v4.subnets(PODS_V4).ok()?.nth(n as usize)?;
        let v6 = self.v6.subnets(PODS_V6).ok()?.nth(n as usize)?;
        Some([v4.into(), v6.into()])
    }
}

/// A node has 254 IPv4 addresses for Pods.
const PODS_V4: u8 = 24;
const PODS_V6: u8 = 64;

fn is_usable(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    !(link_local || address.is_loopback() || address.is_multicast())
}

/// The ranges of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// Nodes, control plane and external clients.
    pub nodes: Dual,
    /// Pods; each node has a subrange.
    pub pods: Dual,
    /// Cluster IPs.
    pub services: Dual,
}

impl Default for Ranges {
    fn default() -> Self {
        let dual = |text: &str| text.parse().expect("a range of each family");
        Self {
            nodes: dual("172.31.0.0/16,fd00:172:31::/64"),
            pods: dual("10.244.0.0/16,fd00:10:244::/48"),
            services: dual("10.96.0.0/16,fd00:10:96::/112"),
        }
    }
}

impl Ranges {
    /// Fails if a range is unusable or two ranges overlap.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        let named = [
            ("--node-cidr", self.nodes),
            ("--pod-cidr", self.pods),
            ("--service-cidr", self.services),
        ];
        for (flag, dual) in named {
            let unusable = dual.both().into_iter().find(|range| !is_usable(range.network()));
            if let Some(range) = unusable {
                return Err(LabError::RangeUnusable { flag, range });
            }
        }
        for (n, (flag, dual)) in named.iter().enumerate() {
            for (other_flag, other) in &named[..n] {
                for (range, taken) in dual.both().iter().zip(other.both()) {
                    if range.contains(&taken) || taken.contains(range) {
                        return Err(LabError::RangeInUse {
                            flag,
                            range: *range,
                            other: other_flag,
                            taken,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_refused() {
        assert!(Ranges::default().check().is_ok());
        let pods = "10.0.0.0/8,fd00:10:244::/48".parse().expect("a valid pair");
        let said = Ranges { pods, ..Ranges::default() }.check().expect_err("10.96 is in 10");
        let said = said.to_string();
        assert!(
            said.contains("--service-cidr 10.96.0.0/16 overlaps --pod-cidr 10.0.0.0/8"),
            "{said}"
        );
    }

    #[test]
    fn unusable_ranges_are_refused() {
        for wrong in ["127.0.0.0/16,fd01::/48", "10.9.0.0/16,fe80::/64", "224.0.0.0/16,fd01::/48"] {
            let pods = wrong.parse().expect("a valid pair");
            let said = Ranges { pods, ..Ranges::default() }.check().expect_err(wrong).to_string();
            assert!(said.contains("--pod-cidr") && said.contains("loopback"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_pair_has_one_range_of_each_family_in_any_order() {
        let pair: Dual = "fd00::1/64,10.1.2.3/16".parse().expect("a valid pair");
        assert_eq!(pair.to_string(), "10.1.0.0/16,fd00::/64");
        for wrong in ["10.0.0.0/8", "10.0.0.0/8,11.0.0.0/8", "a,b", ""] {
            assert!(wrong.parse::<Dual>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn small_range_runs_out() {
        let pair: Dual = "10.0.0.0/29,fd00::/64".parse().expect("a valid pair");
        assert!(pair.at(6).is_some());
        assert_eq!(pair.at(7), None, "the broadcast address");
        assert_eq!(pair.at(8), None);
        assert_eq!(pair.subrange(0), None, "too small for a node's Pods");
    }
}
