//! One Pod: decisions and their execution.
//!
//! ```text
//!   machine  the Pod's state machine (pure)             view    the Pod's status (pure)
//!   describe the machine of a Pod object (pure)         sandbox network, addresses, files
//!   worker   the task that owns the Pod
//!   launch   a run of a container                       log     its log
//!   probe    thresholds (pure)     prober  the requests  env, volumes  a container's inputs
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
