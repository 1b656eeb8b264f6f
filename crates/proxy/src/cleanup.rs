//! `--cleanup`: deletes the rules. Nothing else ever does.

use crate::engine::Engine;
use crate::error::ProxyError;
use crate::kernel::Kernel;
use crate::lock::Lock;
use crate::options::Options;

/// Deletes the table in every family. That there is none is fine.
///
/// # Errors
/// A proxy runs that would write it again, or the kernel refuses.
pub fn cleanup(options: &Options) -> Result<(), ProxyError> {
    let _lock = Lock::take(&options.table)?;
    let mut kernel = Kernel::open()?;
    for family in &options.families {
        Engine::remove(&mut kernel, &options.config(*family, None))?;
    }
    Ok(())
}
