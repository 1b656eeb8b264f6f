//! From an address to a place: who asks, and where does it stand?
//!
//! PodLocators say it for Pods (KEP-536 "DNS server changes"); where there is none, Nodes say it
//! for the ranges that their Pods' addresses come from, and for their own addresses.

mod find;

pub use find::{How, Located, Locators, NodeRanges};
