//! Auto, compared with a brute-force search and with the replica counts that users report.

use std::collections::BTreeMap;

use nearhop_core::Name;
use nearhop_core::hint::auto::{AutoRefusal, Candidate, HintsAreSet, assign};
use proptest::prelude::*;

const ZONES: [&str; 3] = ["a", "b", "c"];

fn names() -> Vec<Name> {
    ["a", "b", "c", "no-nodes"].map(Name::from).to_vec()
}

/// Whether the overload of every zone with a share is at most `percent`: N*s/S <= h * (1 +
/// percent).
fn within(assigned: &[usize], shares: &[u64], percent: u64) -> bool {
    let total: u64 = shares.iter().sum();
    shares.iter().enumerate().all(|(zone, share)| {
        let hinted = assigned.iter().filter(|z| **z == zone).count() as u64;
        assigned.len() as u64 * share * 100 <= hinted * total * (100 + percent)
    })
}

/// Number of endpoints hinted for another zone than their own. Endpoints without a zone with nodes
/// do not count.
fn moved(own: &[Option<usize>], assigned: &[usize], zones: usize) -> usize {
    let left = |own: &Option<usize>, now: usize| own.is_some_and(|own| own < zones && own != now);
    own.iter().zip(assigned).filter(|(own, now)| left(own, **now)).count()
}

/// The smallest number of endpoints outside their own zone over all assignments within 20 %, if
/// any.
fn brute_force(own: &[Option<usize>], shares: &[u64]) -> Option<usize> {
    let choices: Vec<Vec<usize>> = own.iter().map(|_| (0..shares.len()).collect()).collect();
    let mut best = None;
    let mut at = vec![0; own.len()];
    loop {
        let assigned: Vec<usize> = at.iter().zip(&choices).map(|(i, choice)| choice[*i]).collect();
        if within(&assigned, shares, 20) {
            let count = moved(own, &assigned, shares.len());
            best = Some(best.map_or(count, |b: usize| b.min(count)));
        }
        let Some(digit) = (0..at.len()).find(|i| at[*i] + 1 < choices[*i].len()) else {
            return best;
        };
        at[digit] += 1;
        at[..digit].fill(0);
    }
}

fn share_map(shares: &[u64]) -> BTreeMap<Name, u64> {
    ZONES.iter().zip(shares).map(|(zone, share)| (Name::from(*zone), *share)).collect()
}

fn run(
    own: &[Option<usize>],
    hinted: &[Option<usize>],
    shares: &[u64],
) -> Result<Vec<usize>, AutoRefusal> {
    let names = names();
    let index = |name: &Name| names.iter().position(|n| n == name).expect("the zone is known");
    let place = |zone: Option<usize>| {
        zone.map(|zone| if zone < shares.len() { &names[zone] } else { &names[3] })
    };
    let candidates: Vec<Candidate<'_>> = (own.iter().zip(hinted))
        .map(|(own, hinted)| Candidate { zone: place(*own), hinted: place(*hinted) })
        .collect();
    let set = if hinted.iter().any(Option::is_some) { HintsAreSet::Yes } else { HintsAreSet::No };
    let zones = assign(&candidates, &share_map(shares), set)?;
    Ok(zones.iter().map(index).collect())
}

prop_compose! {
    /// Two or three zones with shares, and up to six endpoints: in these zones, in a zone without
    /// capacity, or without a zone.
    fn small()(shares in prop::collection::vec(1_u64..9, 2..=3))
        (own in prop::collection::vec(prop::option::weighted(0.9, 0..=shares.len()), 0..=6),
         shares in Just(shares)) -> (Vec<Option<usize>>, Vec<u64>) {
        (own, shares)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn the_fewest_endpoints_are_hinted_for_other_zones((own, shares) in small()) {
        let unhinted = vec![None; own.len()];
        let best = if own.len() < shares.len() { None } else { brute_force(&own, &shares) };
        match (run(&own, &unhinted, &shares), best) {
            (Ok(assigned), Some(best)) => {
                prop_assert!(within(&assigned, &shares, 20), "overloaded: {assigned:?}");
                let moved = moved(&own, &assigned, shares.len());
                prop_assert_eq!(moved, best, "assigned {:?}", assigned);
            }
            (Err(_), None) => {}
            (got, best) => prop_assert!(false, "got {got:?}, brute force {best:?}"),
        }
    }

    #[test]
    fn hints_within_30_percent_are_kept_as_they_are(
        (own, shares) in small(),
        hinted in prop::collection::vec(0_usize..3, 6),
    ) {
        if own.len() < shares.len() {
            return Ok(());
        }
        let hinted: Vec<usize> = hinted.iter().take(own.len()).map(|z| z % shares.len()).collect();
        let before: Vec<Option<usize>> = hinted.iter().copied().map(Some).collect();
        let assigned = run(&own, &before, &shares);
        if within(&hinted, &shares, 30) {
            prop_assert_eq!(assigned, Ok(hinted));
        } else if let Ok(assigned) = assigned {
            // Auto redistributes the hints instead of removing them, and the overload is within the
            // limit again.
            prop_assert!(within(&assigned, &shares, 30), "still overloaded: {assigned:?}");
        } else {
            prop_assert!(brute_force(&own, &shares).is_none(), "the hints were removed although an assignment exists");
        }
    }
}

/// The thresholds themselves: at 20 % and 30 % nothing changes, slightly above them the hints
/// change.
#[test]
fn the_thresholds_are_20_and_30_percent() {
    let in_b = |own: (usize, usize), hinted: bool| {
        let zones: Vec<Option<usize>> = std::iter::repeat_n(Some(0), own.0)
            .chain(std::iter::repeat_n(Some(1), own.1))
            .collect();
        let before = if hinted { zones.clone() } else { vec![None; zones.len()] };
        let assigned = run(&zones, &before, &[1, 1]).expect("the endpoints suffice");
        assigned.iter().filter(|zone| **zone == 1).count()
    };
    assert_eq!(in_b((700, 500), false), 500, "600 wanted, 500 there: 20 %");
    assert_eq!(in_b((702, 500), false), 501, "601 wanted, 500 there: 20.2 %");
    assert_eq!(in_b((800, 500), true), 500, "650 wanted, 500 hinted: 30 %");
    assert_eq!(in_b((1602, 1000), true), 1085, "1301 wanted, 1000 there: 30.1 %, so back to 20 %");
}

/// Zones without a share get no endpoints, and do not change the assignment of others.
#[test]
fn a_zone_without_share_is_ignored() {
    let own = [Some(0); 4];
    assert_eq!(run(&own, &[None; 4], &[5, 0, 5]), Ok(vec![2, 2, 0, 0]));
    assert!(run(&own, &[Some(0); 4], &[0, 0, 0]).is_err());
}

/// Hints for a zone that lost its nodes are removed.
#[test]
fn hints_for_a_lost_zone_are_removed() {
    let own = [0, 0, 0, 1, 1, 1].map(Some);
    let hinted = [Some(2), Some(0), Some(0), Some(1), Some(1), Some(1)];
    assert_eq!(run(&own, &hinted, &[1, 1]), Ok(vec![0, 0, 0, 1, 1, 1]));
}

/// Replica counts for which Auto cannot add hints, with at least one endpoint per zone, checked up
/// to 300. Users of upstream's Auto report these counts (for example the even spread [4, 4, 3]).
#[test]
fn the_refused_replica_counts_match_user_reports() {
    let refused = |shares: &[u64]| -> Vec<usize> {
        let names: Vec<Name> = (0..shares.len()).map(|i| Name::from(format!("z{i}"))).collect();
        let map: BTreeMap<Name, u64> = names.iter().cloned().zip(shares.iter().copied()).collect();
        (shares.len()..=300)
            .filter(|count| {
                let all: Vec<Candidate<'_>> = (0..*count)
                    .map(|i| Candidate { zone: Some(&names[i % names.len()]), hinted: None })
                    .collect();
                assign(&all, &map, HintsAreSet::No).is_err()
            })
            .collect()
    };
    assert_eq!(refused(&[1, 1, 1]), [4, 5, 8, 11]);
    assert_eq!(refused(&[1, 1]), [3, 5]);
    assert_eq!(refused(&[1, 1, 1, 1]), [5, 6, 7, 10, 11, 15]);
    assert_eq!(refused(&[2, 1, 1]), [3, 5, 6, 10]);
}

/// The refusal contains the compared numbers.
#[test]
fn a_refusal_contains_the_needed_number() {
    let own: Vec<Option<usize>> = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2].map(Some).to_vec();
    let why = run(&own, &[None; 11], &[1, 1, 1]).unwrap_err();
    assert_eq!(why, AutoRefusal::Overload { ready: 11, zones: 3, needed: 12 });
}

/// The first endpoint in the list is hinted for the other zone that needs the most endpoints.
#[test]
fn the_first_endpoints_are_hinted_for_other_zones() {
    let own = [0, 1, 0, 0, 2, 0, 2, 1, 2, 0].map(Some);
    let assigned = run(&own, &[None; 10], &[35, 35, 30]).unwrap();
    assert_eq!(assigned, [1, 1, 0, 0, 2, 0, 2, 1, 2, 0]);
}

/// An endpoint that is already hinted for another zone keeps that hint, so that no other endpoint
/// is rewritten.
#[test]
fn existing_hints_for_other_zones_are_kept() {
    let own = [0, 0, 0, 0, 0, 1].map(Some);
    let hinted = [None, None, None, Some(1), Some(1), Some(1)];
    // Zone b has grown: with half the CPU, 2 of 6 hinted endpoints are no longer enough.
    let assigned = run(&own, &hinted, &[1, 1]).unwrap();
    assert_eq!(assigned, [0, 0, 0, 1, 1, 1]);
}
