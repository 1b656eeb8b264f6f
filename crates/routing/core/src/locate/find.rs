//! The index from addresses to places. It follows the Node and PodLocator objects.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::key::{Family, Name, PodKey};
use crate::model::{Locator, Node};
use crate::route::Place;

/// How a place was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// A Pod has the address, by its PodLocator.
    Locator(PodKey),
    /// The address is in the Pod CIDR of this node.
    PodCidr(Cidr),
    /// A node has the address: the client is the node itself or one of its host-network Pods.
    NodeAddress,
    /// The address is unknown.
    Unknown,
}

impl How {
    /// A stable name for metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locator(_) => "locator",
            Self::PodCidr(_) => "pod-cidr",
            Self::NodeAddress => "node-address",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locator(pod) => write!(f, "PodLocator {pod}"),
            Self::PodCidr(cidr) => write!(f, "the node's Pods are in {cidr}"),
            Self::NodeAddress => f.write_str("it is the node's own address"),
            Self::Unknown => f.write_str("the address is unknown"),
        }
    }
}

/// The place of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The place, if it is known.
    pub place: Option<Arc<Place>>,
    /// How it was found.
    pub how: How,
}

impl Located {
    /// The result for an unknown address.
    pub fn unknown() -> Self {
        Self { place: None, how: How::Unknown }
    }
}

/// PodLocators by name and by address.
#[derive(Clone, Debug, Default)]
pub struct Locators {
    by_key: BTreeMap<PodKey, Arc<Entry>>,
    /// Host-network Pods share the address of their node. A Pod that is about to be deleted can
    /// share its address with a newer Pod. Sorted by name, so that the order of arrival does not
    /// matter.
    by_address: BTreeMap<IpAddr, Vec<Arc<Entry>>>,
    /// One place for all Pods of a node with the same labels.
    places: BTreeMap<Name, Arc<Place>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    locator: Locator,
    /// Set if the locator names a node.
    place: Option<Arc<Place>>,
}

impl PartialEq for Locators {
    /// All other fields follow from these. Whether places share memory is ignored.
    fn eq(&self, other: &Self) -> bool {
        self.by_key == other.by_key
    }
}

impl Locators {
    /// A PodLocator by its key.
    pub fn get(&self, key: &PodKey) -> Option<&Locator> {
        self.by_key.get(key).map(|entry| &entry.locator)
    }

    /// All PodLocators, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Locator> {
        self.by_key.values().map(|entry| &entry.locator)
    }

    /// The number of PodLocators.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are no PodLocators.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Adds or replaces a PodLocator, and returns whether that changed anything.
    pub fn put(&mut self, locator: Locator) -> bool {
        if self.get(&locator.key) == Some(&locator) {
            return false;
        }
        self.remove(&locator.key.clone());
        // The controller does not write locators without an owner Pod, so their addresses are
        // ignored.
        let owned = locator.owner.is_some();
        let place = if owned { self.place_of(&locator) } else { None };
        let entry = Arc::new(Entry { locator, place });
        for address in entry.locator.ips.as_slice().iter().filter(|_| owned) {
            let there = self.by_address.entry(*address).or_default();
            let at = there.binary_search_by(|other| other.locator.key.cmp(&entry.locator.key));
            if let Err(at) = at {
                there.insert(at, entry.clone());
            }
        }
        self.by_key.insert(entry.locator.key.clone(), entry);
        true
    }

    /// Removes a PodLocator, and returns whether it existed.
    pub fn remove(&mut self, key: &PodKey) -> bool {
        let Some(entry) = self.by_key.remove(key) else { return false };
        for address in entry.locator.ips.as_slice() {
            if let Some(there) = self.by_address.get_mut(address) {
                there.retain(|other| !Arc::ptr_eq(other, &entry));
                if there.is_empty() {
                    self.by_address.remove(address);
                }
            }
        }
        // The place remains while other entries use it. Two references are the map's and this
        // entry's.
        let alone = |place: &Arc<Place>| {
            let its = entry.place.as_ref().is_some_and(|own| Arc::ptr_eq(own, place));
            its && Arc::strong_count(place) <= 2
        };
        if let Some(node) = &entry.locator.node
            && self.places.get(node).is_some_and(alone)
        {
            self.places.remove(node);
        }
        true
    }

    /// The place of the Pod with this address, if a locator has it. If several Pods share it, they
    /// use the network of one node. The locator of a terminal Pod has no address.
    pub fn find(&self, address: IpAddr) -> Option<Located> {
        let there = self.by_address.get(&address)?;
        let entry = there.iter().find(|entry| entry.place.is_some())?;
        let how = How::Locator(entry.locator.key.clone());
        Some(Located { place: entry.place.clone(), how })
    }

    /// A locator that has this address and does not name a node.
    pub(crate) fn find_placeless(&self, address: IpAddr) -> Option<Located> {
        let entry = self.by_address.get(&address)?.first()?;
        Some(Located { place: None, how: How::Locator(entry.locator.key.clone()) })
    }

    /// Whether a Pod of this namespace has this address.
    pub fn is_in(&self, namespace: &str, address: IpAddr) -> bool {
        let there = self.by_address.get(&address).into_iter().flatten();
        there.into_iter().any(|entry| entry.locator.key.namespace == *namespace)
    }

    fn place_of(&mut self, locator: &Locator) -> Option<Arc<Place>> {
        let node = locator.node.as_ref()?;
        let place = Place::at(node.clone(), locator.node_labels.clone());
        let known = self.places.get(node).filter(|known| ***known == place);
        let place = known.cloned().unwrap_or_else(|| Arc::new(place));
        self.places.insert(node.clone(), place.clone());
        Some(place)
    }
}

/// Nodes by their Pod CIDRs and by their own addresses. If two nodes claim the same, the first by
/// name gets it, independent of the order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeRanges {
    ranges: BTreeMap<Cidr, ByNode>,
    /// The number of ranges with each prefix length. The search starts with the longest.
    prefixes: BTreeMap<(Family, u8), usize>,
    addresses: BTreeMap<IpAddr, ByNode>,
    places: ByNode,
}

type ByNode = BTreeMap<Name, Arc<Place>>;

impl NodeRanges {
    /// Updates the index after a Node was created, changed or deleted.
    pub(crate) fn set(&mut self, before: Option<&Node>, now: Option<&Node>) {
        if let Some(node) = before {
            self.remove(node);
        }
        if let Some(node) = now {
            self.insert(node);
        }
    }

    fn insert(&mut self, node: &Node) {
        let place = Arc::new(Place::of(node));
        self.places.insert(node.name.clone(), place.clone());
        for cidr in &node.pod_cidrs {
            let claims = self.ranges.entry(*cidr).or_default();
            if claims.is_empty() {
                *self.prefixes.entry((cidr.family(), cidr.prefix())).or_default() += 1;
            }
            claims.insert(node.name.clone(), place.clone());
        }
        for address in &node.addresses {
            let claims = self.addresses.entry(*address).or_default();
            claims.insert(node.name.clone(), place.clone());
        }
    }

    fn remove(&mut self, node: &Node) {
        self.places.remove(&node.name);
        for cidr in &node.pod_cidrs {
            if !unclaim(&mut self.ranges, cidr, &node.name) {
                continue;
            }
            let key = (cidr.family(), cidr.prefix());
            if let Some(count) = self.prefixes.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.prefixes.remove(&key);
                }
            }
        }
        for address in &node.addresses {
            unclaim(&mut self.addresses, address, &node.name);
        }
    }

    /// The node whose Pod CIDR contains all addresses that share `prefix` bits with this one.
    pub(crate) fn find_range(&self, address: IpAddr, prefix: u8) -> Option<Located> {
        let family = Family::of(address);
        let lengths = self.prefixes.range((family, 0)..=(family, prefix)).rev();
        for ((_, length), _) in lengths {
            let cidr = Cidr::new(address, *length);
            if let Some(place) = self.ranges.get(&cidr).and_then(first) {
                return Some(Located { place: Some(place), how: How::PodCidr(cidr) });
            }
        }
        None
    }

    /// The place of a node.
    pub(crate) fn place_of(&self, node: &str) -> Option<&Arc<Place>> {
        self.places.get(node)
    }

    /// The node with this address.
    pub(crate) fn find_address(&self, address: IpAddr) -> Option<Located> {
        let place = self.addresses.get(&address).and_then(first)?;
        Some(Located { place: Some(place), how: How::NodeAddress })
    }
}

fn first(claims: &ByNode) -> Option<Arc<Place>> {
    claims.values().next().cloned()
}

/// Removes a node's claim. Returns whether no other node claims the key.
fn unclaim<K: Ord>(all: &mut BTreeMap<K, ByNode>, key: &K, node: &Name) -> bool {
    let Some(claims) = all.get_mut(key) else { return false };
    let gone = claims.remove(node).is_some() && claims.is_empty();
    if gone {
        all.remove(key);
    }
    gone
}
