//! ServiceCIDRs: the ranges that cluster IPs are given from (KEP-1880).

use crate::cidr::Cidr;
use crate::key::Name;

/// A range, or one for each family, that cluster IPs are given from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its name.
    pub name: Name,
    /// Its ranges.
    pub cidrs: Vec<Cidr>,
    /// Whether addresses are given from it: its condition Ready is True.
    pub ready: bool,
}
