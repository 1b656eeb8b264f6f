//! Replaces a table of another layout without a gap: a second table serves meanwhile.
//!
//! ```text
//!   NAME (old) serves       fill NAME.spare, copy the affinity records, add its hooks
//!   NAME.spare serves       delete NAME; fill it anew, copy the affinity records, add its hooks
//!   NAME (new) serves       delete NAME.spare
//! ```
//!
//! While two tables have hooks, a connection is still translated once: of two nat chains of one
//! priority the kernel asks the one first that was added last, and the other one finds the
//! connection translated. A proxy that is killed on the way leaves at least one table that serves;
//! the next full pass goes on from there.

use nearhop_core::Name;
use nearhop_netfilter::affinity::{LEGACY_MAP, port_of};
use nearhop_netfilter::object::{Batch, Op, Table};
use nearhop_netfilter::reconcile::{KernelState, reconcile};

use super::{ApplyError, Engine, Tables};

/// The table that serves while ours is replaced.
pub fn spare_of(table: &Table) -> Table {
    Table { family: table.family, name: Name::from(format!("{}.spare", table.name)) }
}

impl Engine {
    /// Writes the desired table in place of an outdated or dormant one.
    pub(super) fn replace(
        &mut self,
        tables: &mut impl Tables,
        held: &KernelState,
    ) -> Result<(), ApplyError> {
        let ours = self.config().table.clone();
        tracing::info!(table = %ours.name, "replacing outdated or dormant table");
        let replaced = self.replace_by_way_of(tables, &spare_of(&ours), held);
        self.desired.move_to(ours);
        replaced
    }

    fn replace_by_way_of(
        &mut self,
        tables: &mut impl Tables,
        spare: &Table,
        held: &KernelState,
    ) -> Result<(), ApplyError> {
        let ours = self.config().table.clone();
        // What an earlier start left may have another layout too, and ours still serves.
        self.remove_spare(tables, spare)?;
        let recorded = |map: &&Name| **map == *LEGACY_MAP || port_of(map).is_some();
        let maps: Vec<Name> = held.sets.iter().filter(recorded).cloned().collect();
        self.desired.move_to(spare.clone());
        self.write_new(tables, &ours, &maps)?;
        self.apply(tables, &Batch { table: ours.clone(), ops: vec![Op::DeleteTable] })?;
        let maps: Vec<Name> = self.desired.maps().iter().cloned().collect();
        self.desired.move_to(ours);
        self.write_new(tables, spare, &maps)?;
        self.remove_spare(tables, spare)
    }

    /// Writes a table that is not there. Its records come from another one, as late as possible:
    /// packets go on recording there until the new one has hooks.
    fn write_new(
        &mut self,
        tables: &mut impl Tables,
        from: &Table,
        maps: &[Name],
    ) -> Result<(), ApplyError> {
        let mut changes = reconcile(&self.desired, None);
        let hooks = changes.hold_back();
        self.fill(tables, changes)?;
        let records = self.read_leaving(tables, from, maps);
        self.carry(tables, &records, None);
        self.fill(tables, hooks)
    }

    /// Deletes the spare table, if it is there.
    pub(super) fn remove_spare(
        &mut self,
        tables: &mut impl Tables,
        spare: &Table,
    ) -> Result<(), ApplyError> {
        if !tables.has(spare)? {
            return Ok(());
        }
        self.apply(tables, &Batch { table: spare.clone(), ops: vec![Op::DeleteTable] })
    }
}
