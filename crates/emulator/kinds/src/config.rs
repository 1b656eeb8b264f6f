//! The configuration of the cluster: Service ranges, node port range, feature gates.

use std::ops::RangeInclusive;

use nearhop_core::{Cidr, Family, Gates};

use crate::ip::parse_strict_cidr;

/// The configuration that validation and allocation read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The ranges of cluster IPs.
    pub service_cidrs: ServiceCidrs,
    /// The range of node ports.
    pub node_ports: RangeInclusive<u16>,
    /// Feature gates.
    pub gates: Gates,
}

/// The default range of node ports.
pub(crate) const DEFAULT_NODE_PORTS: RangeInclusive<u16> = 30000..=32767;

impl ClusterConfig {
    /// These ranges, with the default node ports and gates.
    pub fn new(service_cidrs: ServiceCidrs) -> Self {
        Self { service_cidrs, node_ports: DEFAULT_NODE_PORTS, gates: Gates::default() }
    }
}

/// One range, or two of different families. The first is of the primary family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCidrs {
    primary: Cidr,
    secondary: Option<Cidr>,
}

/// Why a `--service-cidr` or `--node-ports` value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a CIDR.
    #[error("{0:?} is not a CIDR such as 10.96.0.0/16, with no bits set beyond the prefix length")]
    NotACidr(String),
    /// None, or more than two.
    #[error("{0} Service ranges, expected one, or two of different IP families")]
    Count(usize),
    /// Two of the same family.
    #[error("two {0} Service ranges; two ranges must be of different IP families")]
    SameFamily(Family),
    /// Fewer than eight addresses.
    #[error("the Service range {0} is too small; it must have at least 8 addresses")]
    TooSmall(Cidr),
    /// Too many addresses.
    #[error("the Service range {0} is too large; the shortest IPv6 prefix is 64")]
    TooLarge(Cidr),
    /// Not of the form `30000-32767`.
    #[error("{0:?} is not a range of ports such as 30000-32767")]
    NotAPortRange(String),
}

impl ServiceCidrs {
    /// Reads `10.96.0.0/16` or `10.96.0.0/16,fd00:10:96::/112`.
    ///
    /// # Errors
    /// The error of the first invalid range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
        match parts.as_slice() {
            [one] => Ok(Self { primary: parse_cidr(one)?, secondary: None }),
            [one, two] => {
                let (primary, secondary) = (parse_cidr(one)?, parse_cidr(two)?);
                if primary.family() == secondary.family() {
                    return Err(ConfigError::SameFamily(primary.family()));
                }
                Ok(Self { primary, secondary: Some(secondary) })
            }
            other => Err(ConfigError::Count(other.len())),
        }
    }

    /// The ranges, the primary one first.
    pub fn iter(self) -> impl Iterator<Item = Cidr> {
        std::iter::once(self.primary).chain(self.secondary)
    }
}

fn parse_cidr(text: &str) -> Result<Cidr, ConfigError> {
    let cidr = parse_strict_cidr(text).ok_or_else(|| ConfigError::NotACidr(text.to_owned()))?;
    if cidr.host_bits() < 3 {
        return Err(ConfigError::TooSmall(cidr));
    }
    if cidr.host_bits() > 64 {
        return Err(ConfigError::TooLarge(cidr));
    }
    Ok(cidr)
}

/// Reads `30000-32767`.
///
/// # Errors
/// If it is not a range of ports, or an empty one.
pub fn parse_port_range(text: &str) -> Result<RangeInclusive<u16>, ConfigError> {
    let fail = || ConfigError::NotAPortRange(text.to_owned());
    let (first, last) = text.split_once('-').ok_or_else(fail)?;
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(fail()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_two_ranges_are_parsed() {
        let single = ServiceCidrs::parse("10.96.0.0/16").unwrap();
        assert_eq!((single.primary.family(), single.secondary), (Family::Ipv4, None));
        let dual = ServiceCidrs::parse("fd00:10:96::/112, 10.96.0.0/16").unwrap();
        let families: Vec<Family> = dual.iter().map(Cidr::family).collect();
        assert_eq!(families, [Family::Ipv6, Family::Ipv4]);
    }

    #[test]
    fn errors_describe_the_invalid_range() {
        let parse = |text| ServiceCidrs::parse(text).unwrap_err().to_string();
        assert!(parse("").starts_with("0 Service ranges"));
        assert!(parse("10.96.0.1/16").contains("is not a CIDR"));
        assert!(parse("10.0.0.0/30").contains("too small"));
        assert!(parse("fd00::/63").contains("too large"));
        assert!(parse("10.0.0.0/16,10.1.0.0/16").contains("two IPv4"));
        assert_eq!(parse_port_range("30000-32767"), Ok(30000..=32767));
        for text in ["", "1", "5-4", "0-9", "1-70000"] {
            assert!(parse_port_range(text).is_err(), "{text}");
        }
    }
}
