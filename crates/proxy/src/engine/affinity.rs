//! Clients that stay with an endpoint which their frontend no longer uses are let go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nearhop_core::Name;
use nearhop_netfilter::frontend::{At, Frontend, Path};
use nearhop_netfilter::image::Image;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Batch, Data, Element, Op};
use nearhop_netfilter::reconcile::{Stay, read_stay};

use super::{ApplyError, Engine, FILL, Tables};

impl Engine {
    /// Lets go of clients whose endpoint is gone, where there may be any. Returns how many. Where
    /// they cannot be read, the next call tries again.
    pub fn release(
        &mut self,
        tables: &mut impl Tables,
        node_addresses: impl FnOnce() -> BTreeSet<IpAddr>,
    ) -> Result<usize, ApplyError> {
        if !self.releases || !self.image.has_affinity() {
            self.releases = false;
            return Ok(0);
        }
        let mut gone = tables.read_affinity(&self.config().table)?;
        self.releases = false;
        let node_addresses = node_addresses();
        gone.retain(|element| !may_stay(element, &self.image, &node_addresses));
        for some in gone.chunks(FILL.min(tables.elements_per_batch())) {
            if self.delete_stays(tables, some).is_err() {
                // One of them may have run out by itself meanwhile.
                for element in some {
                    let _expired = self.delete_stays(tables, std::slice::from_ref(element));
                }
            }
        }
        Ok(gone.len())
    }

    fn delete_stays(
        &mut self,
        tables: &mut impl Tables,
        elements: &[Element],
    ) -> Result<(), ApplyError> {
        let set = Name::from(SetId::Affinity.name());
        let ops = vec![Op::DeleteElements { set, elements: elements.to_vec() }];
        let table = self.config().table.clone();
        self.apply(tables, &Batch { table, ops })
    }
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
    let near = image.config().is_near(stay.client, node_addresses);
    let allowed = match &entry.path {
        Path::LocalOnly(local) if !near => local,
        _ => &entry.endpoints,
    };
    allowed.contains(&stay.endpoint)
}
