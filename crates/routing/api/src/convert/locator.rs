//! PodLocators.

use nearhop_core::model::Locator;
use nearhop_core::problem::quote;
use nearhop_core::{Kind, PodKey};

use super::Converted;
use super::pod::read_ips;
use super::reader::{Identity, read_object};
use crate::wire;

pub(crate) fn convert_locator(locator: wire::PodLocator) -> Converted<Locator> {
    read_object(Kind::Locator, locator.metadata, |reader, identity| {
        let Identity { namespace, name, metadata } = identity;
        let node = reader.take(locator.node_name, format_args!("nodeName"));
        let mut owners = reader.named_owners(metadata.owner_references, "Pod").into_iter();
        let owner = owners.find(|(pod, uid)| *pod == name && !uid.is_empty());
        if owner.is_none() {
            reader.problem(
                "metadata.ownerReferences",
                format!("no Pod {} is its owner", quote(&name)),
                "let only nearhop controller write PodLocators; this one locates no address until \
                 then",
            );
        }
        Locator {
            key: PodKey { namespace, name },
            owner: owner.map(|(_, uid)| uid),
            ips: read_ips(reader, locator.ips, "ips"),
            node: node.filter(|node| !node.is_empty()),
            node_labels: reader.labels(locator.node_labels, format_args!("nodeLabels")),
        }
    })
}
