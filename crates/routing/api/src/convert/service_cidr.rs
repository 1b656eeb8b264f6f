//! ServiceCIDRs.

use nearhop_core::model::ServiceCidr;
use nearhop_core::{Cidr, Kind};

use super::Converted;
use super::node::read_ready;
use super::reader::read_object;
use super::value::CIDR;
use crate::field::Field;
use crate::wire;

/// Converts a ServiceCIDR. A ServiceCIDR without a Ready condition is not ready.
pub(crate) fn convert_service_cidr(object: wire::ServiceCidr) -> Converted<ServiceCidr> {
    read_object(Kind::ServiceCidr, object.metadata, |reader, identity| {
        let spec = reader.take(object.spec, format_args!("spec")).unwrap_or_default();
        let status = reader.take(object.status, format_args!("status")).unwrap_or_default();
        let texts = reader.list(spec.cidrs, format_args!("spec.cidrs"));
        let cidrs = texts.into_iter().filter_map(|(i, text)| {
            reader.text(
                Field::Read(text),
                format_args!("spec.cidrs[{i}]"),
                Cidr::parse_sloppy,
                CIDR,
            )
        });
        let cidrs = cidrs.collect();
        let (ready, _) = read_ready(reader, status.conditions);
        ServiceCidr { name: identity.name, cidrs, ready }
    })
}
