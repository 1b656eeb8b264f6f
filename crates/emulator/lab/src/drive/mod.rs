//! Opens connections to a Service and counts the Pods that answered.
//!
//! ```text
//!   question   the request: target, clients, amount (values, parsed from flags)
//!   places     locations of nodes and Pods, from the cluster's objects
//!   origin     clients and targets, from the cluster's objects
//!   split      how many connections each client opens (pure)
//!   run        runs the clients and collects their counts; refreshes the targets for --watch
//!   client     the stream of one client, on a node or in a Pod
//!   worker     opens connections and counts the answers    (hidden command `lab-drive`)
//!   request    one connection: a request and its answer
//!   ports      source ports, in turn
//!   chosen     the endpoint of a failed connection, from the kernel's conntrack table
//!   lookup     resolves a name at one DNS server
//!   tally      the counts of one client
//!   report     the counts of all clients, by Pod, node and zone (pure)
//!   assertion  conditions on a report: parser and judgement (pure)
//!   hold       opens connections and keeps them open       (hidden command `lab-hold`)
//! ```

pub mod assertion;
mod chosen;
mod client;
pub mod hold;
mod lookup;
mod origin;
mod places;
mod ports;
pub mod question;
pub mod report;
mod request;
pub mod run;
mod split;
pub mod tally;
pub mod worker;

use serde::{Deserialize, Serialize};

pub use tally::Tally;

/// The hidden command of workers.
const WORKER: &str = "lab-drive";

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// The port is closed, or the Service has no endpoints.
    Refused,
    /// The server reset it.
    Reset,
    /// No answer in time.
    TimedOut,
    /// No route.
    Unreachable,
    /// The server closed it without an answer.
    Closed,
    /// The answer is not a hostname.
    NotUnderstood,
    /// The name does not resolve.
    NoSuchName,
    /// A local error, such as no free port.
    Here,
}

impl Failure {
    /// All causes.
    pub const ALL: [Self; 8] = [
        Self::Refused,
        Self::Reset,
        Self::TimedOut,
        Self::Unreachable,
        Self::Closed,
        Self::NotUnderstood,
        Self::NoSuchName,
        Self::Here,
    ];

    /// Description of this many failures, for the output.
    pub fn describe(self, count: u64) -> String {
        let words = match self {
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::TimedOut => "timed out",
            Self::Unreachable => "unreachable",
            Self::Closed => "closed without an answer",
            Self::NotUnderstood => "answered, but not with a hostname",
            Self::NoSuchName if count == 1 => "DNS lookup without addresses",
            Self::NoSuchName => "DNS lookups without addresses",
            Self::Here => "failed on the client's side",
        };
        format!("{count} {words}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_lookups_without_addresses_are_named_as_such() {
        assert_eq!(Failure::NoSuchName.describe(5), "5 DNS lookups without addresses");
        assert_eq!(Failure::NoSuchName.describe(1), "1 DNS lookup without addresses");
        assert_eq!(Failure::TimedOut.describe(2), "2 timed out");
    }
}
