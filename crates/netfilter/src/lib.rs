//! nftables, as far as nearhop needs it, without a socket.

pub mod object;
