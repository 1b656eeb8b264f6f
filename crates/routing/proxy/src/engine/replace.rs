//! Replaces a table of another layout without an interruption: a second table serves meanwhile.
//!
//! ```text
//!   NAME (old) serves       fill NAME.spare, copy the affinity records, add its hooks
//!   NAME.spare serves       delete NAME; fill it again, copy the affinity records, add its hooks
//!   NAME (new) serves       delete NAME.spare
//! ```
//!
//! While both tables have hooks, a connection is still translated once: of two nat chains with the
//! same priority the kernel runs the one that was added last first, and the other one finds the
//! connection already translated. If the proxy is killed during the replacement, at least one table
//! serves; the next full pass continues from there.

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
        // A spare table of an earlier start may have another layout too, and ours still serves.
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

    /// Writes a table that does not exist. Copies the affinity records from another table as late
    /// as possible: packets create records there until the new table has hooks.
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

    /// Deletes the spare table, if it exists.
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
