//! Services: what is filled in, what is refused, what is warned about.
//!
//! A write goes through these steps, in this order (clients see the order in which errors win):
//!
//! 1. decoding, then [`default`]: what the writer is held to have said (managed fields);
//! 2. [`crate::allocate::Allocator::allocate`]: addresses, ports and families, which refuses first;
//! 3. [`prepare_create`] or [`prepare_update`]: what the writer has no say in;
//! 4. the checks of the metadata, then [`validate_create`] or [`validate_update`];
//! 5. [`warnings`], the write itself, and `commit` or `rollback` of what was allocated.
//!
//! Writes to `/status` are checked by [`validate_status_update`] alone. Deliberately not here: the
//! object's metadata, storage, and what a Service's spellings mean for routing (`nearhop-core`).

mod check;
mod check_ips;
mod default;
mod extra;
mod policies;
mod prepare;
mod view;
mod warn;

pub use check::{validate_create, validate_status_update, validate_update};
pub use default::default;
pub use extra::{EXTRA_FIELDS, ExtraField, extra_field_lines, schema};
pub use prepare::{prepare_create, prepare_update};
pub use warn::{status_warnings, warnings};

pub(crate) use check_ips::check_cluster_ips;
pub(crate) use prepare::{carry_over, pair_cluster_ips};
pub(crate) use view::{View, spec_mut};
