//! ServiceCIDRs: the ranges for cluster IPs (KEP-1880).

use crate::cidr::Cidr;
use crate::key::Name;

/// One range, or one per family, from which the API server allocates cluster IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its name.
    pub name: Name,
    /// Its ranges.
    pub cidrs: Vec<Cidr>,
    /// Whether the API server allocates addresses from it: its Ready condition is True.
    pub ready: bool,
}
