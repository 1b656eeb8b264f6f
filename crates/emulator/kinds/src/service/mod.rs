//! Services: defaults, validation, warnings.
//!
//! A write runs these steps, in this order (clients see which error comes first):
//!
//! 1. decoding, then [`default`]; the client owns the result (managed fields);
//! 2. [`crate::allocate::Allocator::allocate`]: addresses, ports and families;
//! 3. [`warn_ignored`], then [`prepare_create`] or [`prepare_update`]: fields that the client cannot
//!    choose;
//! 4. validation of the metadata, then [`validate_create`] or [`validate_update`];
//! 5. [`warnings`], the write, and `commit` or `rollback` of the allocation.
//!
//! [`validate_status_update`] validates writes to `/status`.

mod check;
mod check_ips;
mod default;
mod extra;
mod ignored;
mod policies;
mod prepare;
mod view;
mod warn;

pub use check::{validate_create, validate_status_update, validate_update};
pub use default::default;
pub use extra::schema;
pub use ignored::{warn_ignored, warn_namespace_default};
pub use prepare::{prepare_create, prepare_update};
pub use warn::{status_warnings, warnings};

pub(crate) use check::PROTOCOLS;
pub(crate) use check_ips::check_cluster_ips;
pub(crate) use prepare::{carry_over, pair_cluster_ips};
pub(crate) use view::View;
