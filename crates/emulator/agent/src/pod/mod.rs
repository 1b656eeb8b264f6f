//! One pod: what is decided about it, and how that is done.
//!
//! ```text
//!   machine  what follows from what happened (pure)     view    the status that says so (pure)
//!   describe the machine of an object (pure)            place   network, addresses, files
//!   worker   the task that owns the pod
//!   launch   a run of a container                       log     what it wrote
//!   probe    thresholds (pure)     prober   asking      env, volumes  what a container is given
//! ```

pub(crate) mod context;
pub(crate) mod describe;
pub(crate) mod env;
pub(crate) mod event;
pub(crate) mod launch;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod probe;
pub(crate) mod prober;
pub(crate) mod sandbox;
pub(crate) mod view;
pub(crate) mod volumes;
pub(crate) mod worker;
