//! nftables in memory, for tests, the conformance suite and `explain`.
//!
//! [`fake`] applies batches of `nearhop-netfilter` as the kernel does, [`walk`] sends a virtual
//! packet through the rules, and [`text`] prints rules as `nft` does.
//!
//! Deliberately absent: a socket, a clock, and rules of its own.

pub mod fake;
pub mod text;
pub mod walk;

#[cfg(test)]
mod testing;
