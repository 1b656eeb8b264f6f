//! Session affinity records: deletes those to endpoints that are no longer eligible, and copies
//! records when a table of another layout is replaced.

use std::collections::BTreeSet;

use nearhop_core::Name;
use nearhop_netfilter::affinity::{Reach, define_map, map_name};
use nearhop_netfilter::object::{Batch, Element, Op, Table, Timed};
use nearhop_netfilter::reconcile::{COMMENT, KernelState};
use nearhop_netfilter::records::{carry, endpoint_of};

use super::{ApplyError, Engine, FILL, Tables};

impl Engine {
    /// Takes the Service ports whose records may have to be deleted, since the last call.
    pub fn take_releases(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.releases)
    }

    /// Deletes the records of a Service port whose endpoint is no longer eligible. Returns how
    /// many. Records that could not be deleted remain for the next call.
    pub fn release(&mut self, tables: &mut impl Tables, port: &Name) -> Result<usize, ApplyError> {
        let mut released = 0;
        for reach in [Reach::Cluster, Reach::Local] {
            let map = map_name(port, reach);
            if !self.desired.maps().contains(&map) {
                continue;
            }
            let allowed = self.desired.sticky_endpoints(port, reach);
            let family = self.config().family();
            let mut gone = tables.read_records(&self.config().table, &map)?;
            gone.retain(|record| {
                endpoint_of(&record.element, family).is_none_or(|end| !allowed.contains(&end))
            });
            // Sort records that expire soon next to each other, so that few halves fail.
            gone.sort_by_key(|record| record.expires_ms);
            let gone: Vec<Element> = gone.into_iter().map(|record| record.element).collect();
            for some in gone.chunks(FILL.min(tables.elements_per_batch())) {
                released += self.delete_records(tables, &map, some)?;
            }
        }
        Ok(released)
    }

    /// Deletes records. If one of them has expired meanwhile, the kernel refuses the whole batch:
    /// each half is then tried separately.
    fn delete_records(
        &mut self,
        tables: &mut impl Tables,
        map: &Name,
        elements: &[Element],
    ) -> Result<usize, ApplyError> {
        let ops = vec![Op::DeleteElements { set: map.clone(), elements: elements.to_vec() }];
        let batch = Batch { table: self.config().table.clone(), ops };
        match (self.apply(tables, &batch), elements) {
            (Ok(()), _) => Ok(elements.len()),
            (Err(ApplyError::Refused(_)), [_]) => Ok(0),
            (Err(ApplyError::Refused(_)), _) => {
                let (one, other) = elements.split_at(elements.len() / 2);
                let deleted = self.delete_records(tables, map, one)?;
                Ok(deleted + self.delete_records(tables, map, other)?)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Deletes the unused chains and maps of a Service port. Not in the batch after which they are
    /// unused: kernels before 6.2 release references late.
    pub fn retire(&mut self, tables: &mut impl Tables, port: &Name) -> Result<(), ApplyError> {
        let retired = self.desired.unneeded(port);
        if retired.is_empty() {
            return Ok(());
        }
        let table = self.config().table.clone();
        self.apply(tables, &Batch { table, ops: retired.ops() })?;
        for chain in retired.chains() {
            self.rules.remove(&chain);
        }
        self.desired.forget(&retired);
        Ok(())
    }

    /// Reads the records of maps that are about to be deleted. Records that cannot be read are
    /// lost: their clients then get a new endpoint.
    pub(super) fn read_leaving(
        &self,
        tables: &mut impl Tables,
        from: &Table,
        maps: &[Name],
    ) -> Vec<(Name, Vec<Timed>)> {
        let mut leaving = Vec::new();
        for map in maps {
            match tables.read_records(from, map) {
                Ok(records) => leaving.push((map.clone(), records)),
                Err(error) => tracing::warn!(%map, %error, "affinity records lost"),
            }
        }
        leaving
    }

    /// Adds records to the maps of the desired table, before any rule uses them.
    pub(super) fn carry(
        &mut self,
        tables: &mut impl Tables,
        leaving: &[(Name, Vec<Timed>)],
        held: Option<&mut KernelState>,
    ) {
        let (table, family) = (self.config().table.clone(), self.config().family());
        let (mut filled, mut clients) = (BTreeSet::new(), 0);
        for (map, records) in carry(&self.desired, leaving) {
            for some in records.chunks(FILL.min(tables.elements_per_batch())) {
                let ops = vec![
                    Op::AddTable { comment: Name::from(COMMENT) },
                    Op::AddSet(define_map(map.clone(), family)),
                    Op::AddTimed { set: map.clone(), elements: some.to_vec() },
                ];
                match self.apply(tables, &Batch { table: table.clone(), ops }) {
                    Ok(()) => {
                        filled.insert(map.clone());
                        clients += some.len();
                    }
                    Err(error) => {
                        tracing::warn!(%map, %error, "affinity records lost");
                    }
                }
            }
        }
        if let Some(held) = held {
            held.sets.extend(filled);
        }
        if clients > 0 {
            tracing::info!(%family, clients, "affinity records copied");
        }
    }
}
