//! Clients that stay with an endpoint which their frontend no longer uses are let go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nearhop_core::Name;
use nearhop_netfilter::frontend::{At, Frontend, Path};
use nearhop_netfilter::image::Image;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Batch, Data, Element, Op};
use nearhop_netfilter::reconcile::{Stay, read_stay};

use super::{ApplyError, Tables};

/// Lets go of clients whose endpoint is gone. Returns how many.
pub fn release(
    tables: &mut impl Tables,
    image: &Image,
    node_addresses: &BTreeSet<IpAddr>,
) -> Result<usize, ApplyError> {
    let config = image.config();
    let gone: Vec<Element> = tables
        .read_affinity(&config.table)?
        .into_iter()
        .filter(|element| !may_stay(element, image, node_addresses))
        .collect();
    let set = Name::from(SetId::Affinity.name());
    let delete = |elements| Batch {
        table: config.table.clone(),
        ops: vec![Op::DeleteElements { set: set.clone(), elements }],
    };
    let count = gone.len();
    if count > 0 && tables.apply(&delete(gone.clone())).is_err() {
        // One of them may have run out by itself meanwhile.
        for element in gone {
            let _expired = tables.apply(&delete(vec![element]));
        }
    }
    Ok(count)
}

fn may_stay(element: &Element, image: &Image, node_addresses: &BTreeSet<IpAddr>) -> bool {
    let Data::Value(value) = &element.data else { return false };
    let stay = read_stay(&element.key, value, image.config().family());
    stay.is_some_and(|stay| is_allowed(&stay, image, node_addresses))
}

fn is_allowed(stay: &Stay, image: &Image, node_addresses: &BTreeSet<IpAddr>) -> bool {
    let by_port = Frontend { at: At::Node, ..stay.frontend };
    let found = image.frontend(&stay.frontend).or_else(|| image.frontend(&by_port));
    let Some((_, entry)) = found.filter(|(_, entry)| entry.affinity.is_some()) else {
        return false;
    };
    let Path::LocalOnly(local) = &entry.path else {
        return entry.endpoints.contains(&stay.endpoint);
    };
    let near = image.config().is_near(stay.client, node_addresses);
    local.contains(&stay.endpoint) || (near && entry.endpoints.contains(&stay.endpoint))
}
