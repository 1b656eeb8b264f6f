//! `--cleanup`: deletes the rules. Nothing else deletes them.

use nearhop_netfilter::object::Table;
use nearhop_netfilter::reconcile::COMMENT;

use crate::engine::{Engine, spare_of};
use crate::error::ProxyError;
use crate::kernel::Kernel;
use crate::lock::Lock;
use crate::options::Options;

/// Deletes the table in every family. A missing table is not an error.
///
/// # Errors
/// A running proxy would write the table again, or the kernel refuses.
pub fn cleanup(options: &Options) -> Result<(), ProxyError> {
    let _lock = Lock::take(&options.table)?;
    let mut kernel = Kernel::open()?;
    check_owner(&mut kernel, options)?;
    for family in &options.families {
        Engine::remove(&mut kernel, &options.config(*family, None, &[]))?;
    }
    Ok(())
}

/// Fails if the table belongs to another program.
pub(crate) fn check_owner(kernel: &mut Kernel, options: &Options) -> Result<(), ProxyError> {
    for there in kernel.tables()? {
        let family = there.table.family;
        let ours = Table { family, name: options.table.clone() };
        let named = there.table == ours || there.table == spare_of(&ours);
        let served = options.families.contains(&family);
        if named && served && there.comment.as_deref() != Some(COMMENT) {
            return Err(ProxyError::ForeignTable { table: there.table.name, family });
        }
    }
    Ok(())
}
