//! The index from addresses to places, kept in step with the objects it comes from.

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
    /// The address is a Pod's, by its PodLocator.
    Locator(PodKey),
    /// The address is in the range of this node's Pods.
    PodCidr(Cidr),
    /// The address is this node's own: one of its host-network Pods, or the node itself.
    NodeAddress,
    /// The address is unknown.
    Unknown,
}

impl How {
    /// A stable word for labels.
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

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The place, where it is known.
    pub place: Option<Arc<Place>>,
    /// How it was found.
    pub how: How,
}

impl Located {
    /// Unknown.
    pub fn unknown() -> Self {
        Self { place: None, how: How::Unknown }
    }
}

/// PodLocators by name and by address.
#[derive(Clone, Debug, Default)]
pub struct Locators {
    by_key: BTreeMap<PodKey, Arc<Entry>>,
    /// Pods in the host's network share its address, and so does one that is about to be deleted
    /// with the one that got its address since. Sorted by name, so that the order in which they
    /// came does not matter.
    by_address: BTreeMap<IpAddr, Vec<Arc<Entry>>>,
    /// One for all Pods of a node with the same labels.
    places: BTreeMap<Name, Arc<Place>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    locator: Locator,
    /// Where the locator names a node.
    place: Option<Arc<Place>>,
}

impl PartialEq for Locators {
    /// Everything else follows from these; how places are shared does not count.
    fn eq(&self, other: &Self) -> bool {
        self.by_key == other.by_key
    }
}

impl Locators {
    /// One of them.
    pub fn get(&self, key: &PodKey) -> Option<&Locator> {
        self.by_key.get(key).map(|entry| &entry.locator)
    }

    /// All of them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Locator> {
        self.by_key.values().map(|entry| &entry.locator)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Files one, and says whether that changed anything.
    pub fn put(&mut self, locator: Locator) -> bool {
        if self.get(&locator.key) == Some(&locator) {
            return false;
        }
        self.remove(&locator.key.clone());
        // One that no Pod owns is not the controller's, and speaks for no address.
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

    /// Takes one out, and says whether it was there.
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
        // Its place stays while others stand there: the map's, this entry's and theirs.
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

    /// The place of the Pod with this address, if a locator knows it. Several are in the network
    /// of one node; a Pod that is done has no address in its locator.
    pub fn find(&self, address: IpAddr) -> Option<Located> {
        let there = self.by_address.get(&address)?;
        let entry = there.iter().find(|entry| entry.place.is_some())?;
        let how = How::Locator(entry.locator.key.clone());
        Some(Located { place: entry.place.clone(), how })
    }

    /// A locator that has this address and names no node.
    pub fn find_placeless(&self, address: IpAddr) -> Option<Located> {
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

/// Nodes by the addresses of their Pods and by their own. Where two claim the same, the first by
/// name has it, in whatever order they arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRanges {
    ranges: BTreeMap<Cidr, ByNode>,
    /// How many ranges have this many bits: what is looked for, longest first.
    prefixes: BTreeMap<(Family, u8), usize>,
    addresses: BTreeMap<IpAddr, ByNode>,
    places: ByNode,
}

type ByNode = BTreeMap<Name, Arc<Place>>;

impl NodeRanges {
    /// A Node changed, came or went.
    pub fn set(&mut self, before: Option<&Node>, now: Option<&Node>) {
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

    /// The node whose Pods' range holds all addresses that share `prefix` bits with this one.
    pub fn find_range(&self, address: IpAddr, prefix: u8) -> Option<Located> {
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
    pub fn place_of(&self, node: &str) -> Option<&Arc<Place>> {
        self.places.get(node)
    }

    /// The node with this address.
    pub fn find_address(&self, address: IpAddr) -> Option<Located> {
        let place = self.addresses.get(&address).and_then(first)?;
        Some(Located { place: Some(place), how: How::NodeAddress })
    }
}

fn first(claims: &ByNode) -> Option<Arc<Place>> {
    claims.values().next().cloned()
}

/// Returns whether no object claims it any more.
fn unclaim<K: Ord>(all: &mut BTreeMap<K, ByNode>, key: &K, node: &Name) -> bool {
    let Some(claims) = all.get_mut(key) else { return false };
    let gone = claims.remove(node).is_some() && claims.is_empty();
    if gone {
        all.remove(key);
    }
    gone
}
