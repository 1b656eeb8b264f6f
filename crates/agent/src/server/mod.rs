//! Logs and exec, as a kubelet serves them.

use std::sync::Arc;

use crate::pod::context::Context;

/// Begins to serve.
pub(crate) fn start(context: Arc<Context>) {
    let _ = context;
}
