//! Replays the recordings of a real server: every difference is either in `data/accepted.json` or a failure.
//!
//! `NEARHOP_REPLAY=40-get-svc-watch,raw-*` replays only some, `NEARHOP_REPLAY_PRINT=all` prints the accepted
//! differences too. Each group of transcripts is one test, so that a failure shows the affected area.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

use nearhop_skip::skip;
use nearhop_tests::replay::accepted::{Accepted, Recordings, matches};
use nearhop_tests::replay::engine::replay;
use nearhop_tests::replay::prepare::{Plan, read_plans};
use nearhop_tests::replay::transcript::Library;

/// Groups of transcripts by how their names begin.
const GROUPS: [(&str, &[&str]); 9] = [
    ("discovery, apply", &["0*", "1*", "2*"]),
    ("get, watch", &["3*", "4*"]),
    ("describe, explain, edit", &["5*"]),
    ("patch, label, node commands", &["6*"]),
    ("deployments, wait", &["7*", "8*"]),
    ("delete, events, custom resources", &["9*", "a*", "b*"]),
    ("gone, create variants, namespaces", &["c*", "d*"]),
    ("client libraries", &["py-*", "rs-*"]),
    ("raw requests", &["raw-*"]),
];

/// How many transcripts are replayed at a time; most of their time is spent waiting.
const AT_A_TIME: usize = 6;

struct Outcome {
    failures: Vec<String>,
    used: BTreeSet<usize>,
}

struct Recorded {
    library: Library,
    plans: std::collections::BTreeMap<String, Plan>,
    accepted: Accepted,
}

fn recordings() -> Arc<Recorded> {
    static RECORDINGS: OnceLock<Arc<Recorded>> = OnceLock::new();
    let read = || {
        let library = Library::read().expect("transcripts can be read");
        let plans = read_plans().expect("prepare.json can be read");
        let accepted = Accepted::read(Recordings::Transcripts).expect("accepted.json can be read");
        Arc::new(Recorded { library, plans, accepted })
    };
    RECORDINGS.get_or_init(read).clone()
}

/// Replays a group, once per process.
fn outcome(group: usize) -> &'static Outcome {
    static OUTCOMES: [OnceLock<Outcome>; GROUPS.len()] = [const { OnceLock::new() }; GROUPS.len()];
    // One group at a time: its transcripts already run in parallel.
    static TURN: Mutex<()> = Mutex::new(());
    let (_, patterns) = GROUPS[group];
    OUTCOMES[group].get_or_init(|| {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let only = std::env::var("NEARHOP_REPLAY").unwrap_or_else(|_| "*".into());
        let chosen = |name: &str| only.split(',').any(|pattern| matches(pattern, name));
        let names = recordings().library.transcripts.keys().cloned().collect::<Vec<_>>();
        let names = names
            .into_iter()
            .filter(|n| patterns.iter().any(|p| matches(p, n)) && chosen(n))
            .collect();
        tokio::runtime::Runtime::new().expect("runtime").block_on(replay_all(names))
    })
}

async fn replay_all(names: Vec<String>) -> Outcome {
    let limit = Arc::new(tokio::sync::Semaphore::new(AT_A_TIME));
    let mut tasks = tokio::task::JoinSet::new();
    for name in names {
        let limit = limit.clone();
        tasks.spawn(async move {
            let _permit = limit.acquire_owned().await;
            let recordings = recordings();
            let result = replay(&recordings.library, &recordings.plans, &name).await;
            (name, result)
        });
    }
    let mut results = tasks.join_all().await;
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut outcome = Outcome { failures: Vec::new(), used: BTreeSet::new() };
    for (name, result) in results {
        match result {
            Err(error) => outcome.failures.push(format!("{name}: {error:#}")),
            Ok(differences) => {
                if std::env::var("NEARHOP_REPLAY_PRINT").is_ok() {
                    differences.iter().for_each(|d| eprintln!("  {d}"));
                }
                let (unlisted, used) = recordings().accepted.judge(differences);
                outcome.failures.extend(unlisted.iter().map(ToString::to_string));
                outcome.used.extend(used);
            }
        }
    }
    outcome
}

#[track_caller]
fn check(group: usize) {
    let (title, _) = GROUPS[group];
    let failures = &outcome(group).failures;
    assert!(
        failures.is_empty(),
        "{title}: {} differences that are not in data/accepted.json:\n  {}",
        failures.len(),
        failures.join("\n  ")
    );
}

#[test]
fn discovery_and_apply() {
    check(0);
}

#[test]
fn get_and_watch() {
    check(1);
}

#[test]
fn describe_explain_and_edit() {
    check(2);
}

#[test]
fn patch_label_and_node_commands() {
    check(3);
}

#[test]
fn deployments_and_wait() {
    check(4);
}

#[test]
fn delete_events_and_custom_resources() {
    check(5);
}

#[test]
fn gone_create_variants_and_namespaces() {
    check(6);
}

#[test]
fn client_libraries() {
    check(7);
}

#[test]
fn raw_requests() {
    check(8);
}

#[test]
fn every_accepted_difference_still_occurs() {
    if std::env::var("NEARHOP_REPLAY").is_ok() {
        return skip("NEARHOP_REPLAY selects some of the transcripts");
    }
    let used: BTreeSet<usize> =
        (0..GROUPS.len()).flat_map(|group| outcome(group).used.iter().copied()).collect();
    let stale = recordings().accepted.stale(&used);
    assert!(
        stale.is_empty(),
        "entries of data/accepted.json that cover nothing:\n  {}",
        stale.join("\n  ")
    );
}

#[test]
fn every_transcript_is_in_one_group() {
    for name in recordings().library.transcripts.keys() {
        let groups = GROUPS.iter().filter(|(_, p)| p.iter().any(|p| matches(p, name))).count();
        assert_eq!(groups, 1, "{name}");
    }
}
