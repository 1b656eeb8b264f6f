//! Which Service ports have affinity records to delete, and when each port is next.
//!
//! A packet in transit when its endpoint is removed may create its record again, so each port is
//! swept again a second later, until a sweep finds nothing. A failed sweep is repeated after a
//! delay; no sync is needed for that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nearhop_core::Name;
use nearhop_runtime::backoff::Backoff;

use crate::engine::{ApplyError, Engine, Tables};

/// Delay before a port is swept again.
const AGAIN: Duration = Duration::from_secs(1);
/// The first and the longest delay after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Maximum time of one turn, so that the loop processes other events. One more map may be read
/// after it.
const TURN: Duration = Duration::from_millis(20);

/// Service ports with affinity records to delete.
#[derive(Debug, Default)]
pub struct Releases {
    waiting: BTreeMap<Name, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    due: Instant,
    /// Whether the port was swept since it was added.
    swept: bool,
    failures: u32,
}

impl Releases {
    /// Schedules a sweep of ports, due now.
    pub fn add(&mut self, ports: BTreeSet<Name>, now: Instant) {
        let waiting = || Waiting { due: now, swept: false, failures: 0 };
        self.waiting.extend(ports.into_iter().map(|port| (port, waiting())));
    }

    /// When the next port is due, if any is scheduled.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.due).min()
    }

    /// Sweeps the ports that are due, for one turn. Returns how many records were deleted.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        tables: &mut impl Tables,
        now: impl Fn() -> Instant,
    ) -> usize {
        let began = now();
        let due: Vec<Name> = (self.waiting.iter())
            .filter(|(_, waiting)| waiting.due <= began)
            .map(|(port, _)| port.clone())
            .collect();
        let mut released = 0;
        for port in due {
            released += self.sweep(engine, tables, &port, &now);
            if now().duration_since(began) >= TURN {
                break;
            }
        }
        released
    }

    fn sweep(
        &mut self,
        engine: &mut Engine,
        tables: &mut impl Tables,
        port: &Name,
        now: &impl Fn() -> Instant,
    ) -> usize {
        let Some(waiting) = self.waiting.get_mut(port) else { return 0 };
        let released = match engine.release(tables, port) {
            Ok(0) if waiting.swept => match engine.retire(tables, port) {
                Ok(()) => {
                    self.waiting.remove(port);
                    return 0;
                }
                Err(error) => Err(error),
            },
            released => released,
        };
        match released {
            Ok(clients) => {
                *waiting = Waiting { due: now() + AGAIN, swept: true, failures: 0 };
                clients
            }
            Err(error) => {
                waiting.failed(port, &error, now());
                0
            }
        }
    }
}

impl Waiting {
    fn failed(&mut self, port: &Name, error: &ApplyError, now: Instant) {
        let pause = BACKOFF.delay(self.failures, 0.0);
        tracing::warn!(%port, %error, ?pause, "session affinity not released; will retry");
        self.due = now + pause;
        self.failures += 1;
    }
}
