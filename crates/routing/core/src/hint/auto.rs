//! Auto: zone hints in proportion to CPU, with protection against overload (KEP-2433).
//!
//! The overload of a zone compares its demand with its endpoints: with N ready endpoints and the
//! share s of the CPU, a zone with h hinted endpoints has the overload N*s/h - 1. Auto adds hints
//! if no zone is above 20 %, keeps them until a zone is above 30 %, and redistributes them before
//! it removes them (KEP-2433 "Overload"). Of all assignments within the limit, it takes one with
//! the fewest endpoints outside their own zone. All arithmetic uses integers.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::capacity::NoShares;
use crate::key::Name;

/// Auto adds hints up to this overload, in thousandths.
const ADD_PERMILLE: u64 = 200;
/// Auto keeps hints up to this overload, in thousandths.
const KEEP_PERMILLE: u64 = 300;

/// The state of Auto for one Service and family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AutoState {
    /// No plan yet since the start.
    #[default]
    Unknown,
    /// Auto is not requested.
    Off,
    /// Hints are set: the number of endpoints for each zone.
    On(BTreeMap<Name, u32>),
    /// Auto is requested and not possible.
    Refused {
        /// Number of ready endpoints at that time.
        ready: u32,
        /// Why.
        why: AutoRefusal,
    },
}

/// Why Auto sets no hints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AutoRefusal {
    /// The CPU shares of the zones are unknown.
    #[error("{0}")]
    NoShares(NoShares),
    /// Fewer endpoints than zones.
    #[error("Insufficient number of endpoints ({ready} endpoints, {zones} zones)")]
    TooFewEndpoints {
        /// Ready endpoints.
        ready: u32,
        /// Zones.
        zones: u32,
    },
    /// Each possible assignment overloads a zone.
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload \
         threshold ({ready} endpoints, {zones} zones)"
    )]
    Overload {
        /// Ready endpoints.
        ready: u32,
        /// Zones.
        zones: u32,
        /// Number of endpoints that would be needed.
        needed: u32,
    },
}

impl AutoRefusal {
    /// Whether two refusals have the same reason and the same responsible objects; numbers may
    /// differ.
    pub(crate) fn same_reason(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::NoShares(a), Self::NoShares(b)) => a.same_reason(b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl From<NoShares> for AutoRefusal {
    fn from(why: NoShares) -> Self {
        Self::NoShares(why)
    }
}

/// One ready endpoint, as input of Auto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its own zone. If it has none (its node has no zone label), or if the zone has no nodes that
    /// count, Auto assigns it to the zone that needs it most.
    pub zone: Option<&'a Name>,
    /// The one zone it is hinted for now, if any.
    pub hinted: Option<&'a Name>,
}

/// Assigns each ready endpoint, in the given order, to the zone that should use it.
pub fn assign(
    endpoints: &[Candidate<'_>],
    shares: &BTreeMap<Name, u64>,
    hints_are_set: HintsAreSet,
) -> Result<Vec<Name>, AutoRefusal> {
    let zones = Zones::new(endpoints, shares);
    if zones.names.len() < 2 {
        return Err(NoShares::OneZone.into());
    }
    if hints_are_set == HintsAreSet::Yes {
        let kept = zones.keep();
        if zones.within(&zones.count(&kept), KEEP_PERMILLE) {
            return Ok(zones.names(kept));
        }
    }
    let spread = match (zones.feasible(ADD_PERMILLE), hints_are_set) {
        (Ok(minimum), _) => zones.spread(&minimum),
        (Err(_), HintsAreSet::Yes) => zones.spread(&zones.feasible(KEEP_PERMILLE)?),
        (Err(why), HintsAreSet::No) => return Err(why),
    };
    Ok(zones.names(spread))
}

/// Whether the Service has hints now. The limit to keep hints is higher than the limit to add them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintsAreSet {
    /// Hints are set.
    Yes,
    /// Hints are not set.
    No,
}

/// Whether a change of the shares takes a Service over a threshold (KEP-2433 "Handling Node
/// Updates"): existing hints overload a zone, or hints become possible.
pub fn crosses_threshold(
    state: &AutoState,
    shares: Result<&BTreeMap<Name, u64>, NoShares>,
) -> bool {
    match (state, shares) {
        (AutoState::Unknown | AutoState::Off, _) => false,
        (AutoState::On(zones), _) if zones.is_empty() => false,
        (AutoState::On(_), Err(_)) => true,
        (AutoState::On(hinted), Ok(shares)) => {
            let ready: u64 = hinted.values().map(|count| u64::from(*count)).sum();
            let total = total(shares);
            let starves = |(zone, share): (&Name, &u64)| {
                let have = hinted.get(zone).copied().unwrap_or(0);
                u64::from(have) < minimum(ready, *share, total, KEEP_PERMILLE)
            };
            shares.iter().any(starves) || hinted.keys().any(|zone| !shares.contains_key(zone))
        }
        (AutoState::Refused { why, .. }, Err(now)) => !why.same_reason(&now.into()),
        (AutoState::Refused { ready, why }, Ok(shares)) => {
            let now = feasible(u64::from(*ready), live(shares), ADD_PERMILLE);
            now.map_or_else(|now| !now.same_reason(why), |_| true)
        }
    }
}

fn live(shares: &BTreeMap<Name, u64>) -> impl Iterator<Item = u64> + Clone {
    shares.values().copied().filter(|share| *share > 0)
}

fn total(shares: &BTreeMap<Name, u64>) -> u128 {
    shares.values().map(|share| u128::from(*share)).sum()
}

/// The smallest number of endpoints that keeps a zone within the limit: ceil(N*s / (1 + limit)).
fn minimum(ready: u64, share: u64, total: u128, permille: u64) -> u64 {
    let demand = u128::from(ready) * u128::from(share) * 1000;
    let bound = total * u128::from(1000 + permille);
    demand.div_ceil(bound.max(1)) as u64
}

/// The minimum of every zone, if there are enough endpoints.
fn feasible(
    ready: u64,
    shares: impl Iterator<Item = u64> + Clone,
    permille: u64,
) -> Result<Vec<u64>, AutoRefusal> {
    let total: u128 = shares.clone().map(u128::from).sum();
    let minimum: Vec<u64> = shares.map(|share| minimum(ready, share, total, permille)).collect();
    let (count, zones) = (ready as u32, minimum.len() as u32);
    if zones < 2 {
        return Err(NoShares::OneZone.into());
    }
    if u64::from(zones) > ready {
        return Err(AutoRefusal::TooFewEndpoints { ready: count, zones });
    }
    let needed: u64 = minimum.iter().sum();
    if needed > ready {
        return Err(AutoRefusal::Overload { ready: count, zones, needed: needed as u32 });
    }
    Ok(minimum)
}

/// Zones with a share, by number.
struct Zones<'a> {
    endpoints: &'a [Candidate<'a>],
    names: Vec<&'a Name>,
    shares: Vec<u64>,
    total: u128,
}

impl<'a> Zones<'a> {
    fn new(endpoints: &'a [Candidate<'a>], shares: &'a BTreeMap<Name, u64>) -> Self {
        let live = shares.iter().filter(|(_, share)| **share > 0);
        let (names, shares) = live.map(|(zone, share)| (zone, *share)).unzip();
        let zones = Self { endpoints, names, shares, total: 0 };
        Self { total: zones.shares.iter().map(|share| u128::from(*share)).sum(), ..zones }
    }

    /// Index of a zone. There are few zones, and most names are shared pointers.
    fn index(&self, zone: Option<&Name>) -> Option<usize> {
        zone.and_then(|zone| self.names.iter().position(|name| *name == zone))
    }

    fn names(&self, assigned: Vec<usize>) -> Vec<Name> {
        assigned.into_iter().map(|zone| self.names[zone].clone()).collect()
    }

    fn count(&self, assigned: &[usize]) -> Vec<u64> {
        let mut count = vec![0; self.names.len()];
        for zone in assigned {
            count[*zone] += 1;
        }
        count
    }

    fn within(&self, count: &[u64], permille: u64) -> bool {
        let ready = self.endpoints.len() as u64;
        let least = |share: &u64| minimum(ready, *share, self.total, permille).max(1);
        self.shares.iter().zip(count).all(|(share, count)| *count >= least(share))
    }

    fn feasible(&self, permille: u64) -> Result<Vec<u64>, AutoRefusal> {
        feasible(self.endpoints.len() as u64, self.shares.iter().copied(), permille)
    }

    /// Each endpoint keeps its hint; an endpoint without a hint gets its own zone.
    fn keep(&self) -> Vec<usize> {
        let fixed = |endpoint: &Candidate<'_>| {
            self.index(endpoint.hinted).or_else(|| self.index(endpoint.zone))
        };
        self.place_homeless(self.endpoints.iter().map(fixed).collect())
    }

    /// Hints each endpoint for its own zone, except the smallest number of endpoints that brings
    /// each zone to its minimum.
    fn spread(&self, minimum: &[u64]) -> Vec<usize> {
        let home: Vec<Option<usize>> =
            self.endpoints.iter().map(|endpoint| self.index(endpoint.zone)).collect();
        let mut count = vec![0_u64; self.names.len()];
        home.iter().flatten().for_each(|zone| count[*zone] += 1);
        let mut receive: Vec<u64> =
            (0..count.len()).map(|zone| minimum[zone].saturating_sub(count[zone])).collect();
        let mut give = self.choose_givers(&home, &mut count, minimum, &receive);
        let mut assigned: Vec<Option<usize>> = home.clone();
        // Endpoints already hinted for another zone move first; then the others, in list order.
        for to_whom in [Self::as_before, Self::to_the_neediest] {
            for (at, endpoint) in self.endpoints.iter().enumerate() {
                let stays =
                    assigned[at] != home[at] || home[at].is_some_and(|zone| give[zone] == 0);
                let Some(to) = to_whom(self, endpoint, &receive).filter(|_| !stays) else {
                    continue;
                };
                if let Some(from) = home[at] {
                    give[from] -= 1;
                }
                receive[to] -= 1;
                assigned[at] = Some(to);
            }
        }
        self.place_homeless(assigned)
    }

    /// The other zone that an endpoint is already hinted for, if that zone still needs endpoints.
    fn as_before(&self, endpoint: &Candidate<'_>, receive: &[u64]) -> Option<usize> {
        self.index(endpoint.hinted).filter(|zone| receive[*zone] > 0)
    }

    /// The zone that needs the most endpoints.
    fn to_the_neediest(&self, _: &Candidate<'_>, receive: &[u64]) -> Option<usize> {
        let lacking = (0..receive.len()).filter(|zone| receive[*zone] > 0);
        lacking.max_by_key(|zone| (receive[*zone], std::cmp::Reverse(*zone)))
    }

    /// How many endpoints each zone gives to others, starting with the zone furthest above its
    /// share.
    fn choose_givers(
        &self,
        home: &[Option<usize>],
        count: &mut [u64],
        minimum: &[u64],
        receive: &[u64],
    ) -> Vec<u64> {
        let homeless = home.iter().filter(|zone| zone.is_none()).count() as u64;
        let needed = receive.iter().sum::<u64>().saturating_sub(homeless);
        let ready = self.endpoints.len() as u128;
        let mut give = vec![0; count.len()];
        for _ in 0..needed {
            let above = |zone: &usize| {
                let have = u128::from(count[*zone]) * self.total;
                have as i128 - (ready * u128::from(self.shares[*zone])) as i128
            };
            let from = (0..count.len())
                .filter(|zone| count[*zone] > minimum[*zone])
                .max_by_key(|zone| (above(zone), std::cmp::Reverse(*zone)));
            // The sum of the minimums is not above the number of endpoints, so a zone is above its
            // minimum.
            let from = from.expect("a feasible minimum leaves a giver for every receiver");
            count[from] -= 1;
            give[from] += 1;
        }
        give
    }

    /// Assigns endpoints without a zone, or in a zone without nodes, to the zone with the highest
    /// load per endpoint.
    fn place_homeless(&self, assigned: Vec<Option<usize>>) -> Vec<usize> {
        let mut count = vec![0_u64; self.names.len()];
        assigned.iter().flatten().for_each(|zone| count[*zone] += 1);
        let place = |zone: Option<usize>| {
            zone.unwrap_or_else(|| {
                let busiest =
                    (0..self.names.len()).max_by(|a, b| self.compare_load(*a, *b, &count));
                let zone = busiest.expect("there are at least two zones");
                count[zone] += 1;
                zone
            })
        };
        assigned.into_iter().map(place).collect()
    }

    /// Compares share per endpoint, without division; of equal zones the first has priority.
    fn compare_load(&self, a: usize, b: usize, count: &[u64]) -> Ordering {
        let (of_a, of_b) = (u128::from(self.shares[a]), u128::from(self.shares[b]));
        (of_a * u128::from(count[b]))
            .cmp(&(of_b * u128::from(count[a])))
            .then(of_a.cmp(&of_b))
            .then(b.cmp(&a))
    }
}
