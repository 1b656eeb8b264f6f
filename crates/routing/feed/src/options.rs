//! What is watched, and how patiently.

use std::collections::BTreeMap;
use std::time::Duration;

use nearhop_core::Kind;

/// What is watched, and how patiently.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kinds, and which objects of them. Each kind once: a list of some of its objects says
    /// that there are no others.
    pub watches: BTreeMap<Kind, Selectors>,
    /// How everything is read at first, and where a watch cannot be resumed.
    pub lists: Lists,
    /// Objects in one page of a list.
    pub page_size: u32,
    /// A watch without a byte for so long is given up and resumed elsewhere. The server sends a
    /// bookmark about every minute.
    pub stall: Duration,
    /// How long the server is asked to keep a watch, more or less: a tenth is left to chance, so
    /// that watches that began together do not all end together.
    pub watch_timeout: Duration,
    /// A list without a byte for so long has failed.
    pub request_timeout: Duration,
    /// The first pause after an error; each further one is twice as long.
    pub backoff: Duration,
    /// The longest pause, unless the server asks for a longer one.
    pub backoff_cap: Duration,
}

impl Default for Options {
    /// Watches nothing yet.
    fn default() -> Self {
        Self {
            watches: BTreeMap::new(),
            lists: Lists::Streaming,
            page_size: 500,
            stall: Duration::from_secs(150),
            watch_timeout: Duration::from_secs(290),
            request_timeout: Duration::from_secs(30),
            backoff: Duration::from_millis(250),
            backoff_cap: Duration::from_secs(30),
        }
    }
}

/// Which objects of a kind: those that both select. The default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// `labelSelector`.
    pub labels: Option<String>,
    /// `fieldSelector`.
    pub fields: Option<String>,
}

/// How everything is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// As the beginning of a watch (KEP-3157): the server sends one object after the other from
    /// its cache and builds no list. Falls back to [`Lists::Paged`] where it is refused.
    Streaming,
    /// Page by page.
    Paged,
}
