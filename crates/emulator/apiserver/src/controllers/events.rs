//! Deletes Events an hour after they were last seen.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::api::Api;
use crate::builtin::EVENTS;
use crate::http::until;
use crate::rest::write_of;
use crate::store::{Change, Expect};

const LIFETIME: SignedDuration = SignedDuration::from_hours(1);
const PERIOD: Duration = Duration::from_secs(60);

pub(super) async fn run(api: Arc<Api>) {
    let mut stop = api.stopping();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = until(&mut stop) => return,
        }
        let Ok(oldest) = Timestamp::now().checked_sub(LIFETIME) else { continue };
        for event in api.store.list(&EVENTS.storage, None).objects {
            if last_seen(&event.to_value("")).is_some_and(|seen| seen < oldest) {
                let expect = Expect::Version(event.version);
                let write = write_of(&EVENTS, event.name.clone(), expect, Change::Delete);
                // An Event that changed meanwhile was seen again.
                let _ = api.store.write(vec![write]).await;
            }
        }
    }
}

fn last_seen(event: &Value) -> Option<Timestamp> {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    times.into_iter().filter_map(|time| time.as_str()?.parse().ok()).max()
}
