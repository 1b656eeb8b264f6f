//! Reads a cluster once, as a daemon does at start-up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use nearhop_core::world::World;
use nearhop_core::{Change, Gate, Gates, Kind};
use nearhop_feed::{Event, Feed, Options, Selectors};
use nearhop_runtime::client::Client;

/// How long the initial lists may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The kinds that a DNS server reads.
const KINDS: [Kind; 5] = [Kind::Service, Kind::Node, Kind::Namespace, Kind::Slice, Kind::Locator];

/// Reads all objects that DNS answers depend on.
pub(super) async fn read_world(client: Client, gates: Gates) -> anyhow::Result<World> {
    let read = |kind: &Kind| *kind != Kind::Locator || gates.on(Gate::PodLocator);
    let mut missing: BTreeSet<Kind> = KINDS.into_iter().filter(read).collect();
    let watches: BTreeMap<Kind, Selectors> =
        missing.iter().map(|kind| (*kind, Selectors::default())).collect();
    let (feed, mut events) = Feed::start(client, Options { watches, ..Options::default() });
    let mut world = World::new(nearhop_dns::options::settings(gates));
    let reading = async {
        while !missing.is_empty() {
            let Some(batch) = events.recv().await else { return };
            for event in batch {
                match event {
                    Event::Changed(changed) => {
                        if let Some(change) = changed.change {
                            world.apply(change);
                        }
                    }
                    Event::Listed { kind, objects, .. } => {
                        if let Some(objects) = objects {
                            world.apply(Change::Listed(kind, objects));
                        }
                        missing.remove(&kind);
                    }
                }
            }
        }
    };
    if tokio::time::timeout(TIMEOUT, reading).await.is_err() {
        let why = feed.status().into_iter().find_map(|status| status.error);
        let why = why.unwrap_or_else(|| "the API server does not answer".to_owned());
        bail!("cannot read the cluster: {why}");
    }
    Ok(world)
}
