//! Lists the kernel's tables, chains, rules, sets and elements. A list that changed while it was
//! read is read again.
//!
//! The kernel reports when objects changed during a dump, but not when it only moved them: it
//! resizes a hash table in the background after thousands of changes. The kernel lists a set in
//! parts, each from an offset in the current order. If the order changes between two parts, some
//! elements are listed twice and as many are missing. A list with a duplicate is therefore
//! incomplete.

use std::time::Duration;

use nearhop_netfilter::object::{Bytes, Table};
use nearhop_netfilter::wire::{
    DecodeError, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, Message, Names,
    Reply, Request, decode_chain, decode_elements, decode_rule, decode_set, decode_table,
    encode_request, messages,
};
use nix::errno::Errno;

use super::Kernel;
use super::answers::refused_as_a_whole;
use super::error::{KernelError, TableName};

/// How often a changing list is read before giving up.
const TRIES: u32 = 10;

/// Delays before a list is read again, each time that the kernel was resizing a hash table.
const PAUSES: [Duration; 8] = {
    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }
    [ms(1), ms(2), ms(5), ms(10), ms(20), ms(50), ms(100), ms(200)]
};

/// How a dump ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// Something changed during the dump.
    Interrupted,
}

impl Kernel {
    /// The nftables generation: the number of the last change in the network namespace.
    pub fn generation(&mut self) -> Result<u32, KernelError> {
        let mut found = None;
        self.ask(Request::Generation, |message| {
            found = message.generation()?;
            Ok(())
        })?;
        found.ok_or(DecodeError::Missing { object: "generation", part: "number" }.into())
    }

    /// The tables of families `ip` and `ip6`.
    pub fn tables(&mut self) -> Result<Vec<DumpedTable>, KernelError> {
        self.list(Request::Tables, |message, into| {
            into.extend(decode_table(message)?);
            Ok(())
        })
    }

    /// The chains of a table. Empty if the table does not exist.
    pub fn dump_chains(&mut self, table: &Table) -> Result<Vec<DumpedChain>, KernelError> {
        self.list(Request::Chains(table), |message, into| {
            into.extend(decode_chain(message, table)?);
            Ok(())
        })
    }

    /// The rules of a table; those of one chain are in order. Empty if the table does not exist.
    pub fn dump_rules(&mut self, table: &Table) -> Result<Vec<DumpedRule>, KernelError> {
        self.list(Request::Rules(table), |message, into| {
            into.extend(decode_rule(message, table)?);
            Ok(())
        })
    }

    /// The sets and maps of a table.
    pub fn dump_sets(&mut self, table: &Table) -> Result<Vec<DumpedSet>, KernelError> {
        self.list(Request::Sets(table), |message, into| {
            into.extend(decode_set(message, table)?);
            Ok(())
        })
    }

    /// The elements of a set, by their keys.
    pub fn dump_elements(
        &mut self,
        table: &Table,
        set: &str,
    ) -> Result<Vec<DumpedElement>, KernelError> {
        let request = Request::Elements(table, set);
        let mut names = Names::default();
        for pause in PAUSES {
            let mut found =
                self.list(request, |message, into| decode_elements(message, &mut names, into))?;
            found.sort_unstable_by(|one, other| keys(one).cmp(&keys(other)));
            if !found.windows(2).any(|two| keys(&two[0]) == keys(&two[1])) {
                return Ok(found);
            }
            std::thread::sleep(pause);
        }
        Err(KernelError::Unsteady { what: describe(request), tries: PAUSES.len() as u32 })
    }

    /// The elements of a set that other programs' changes keep interrupting: some may be missing,
    /// and some may be deleted already. Enough for a comparison: adding an element that already
    /// exists with the same data succeeds.
    pub(crate) fn dump_elements_roughly(
        &mut self,
        table: &Table,
        set: &str,
    ) -> Result<Vec<DumpedElement>, KernelError> {
        let (mut names, mut found) = (Names::default(), Vec::new());
        self.ask(Request::Elements(table, set), |message| {
            decode_elements(message, &mut names, &mut found)
        })?;
        found.sort_unstable_by(|one, other| keys(one).cmp(&keys(other)));
        found.dedup_by(|one, other| keys(one) == keys(other));
        Ok(found)
    }

    fn list<T>(
        &mut self,
        request: Request<'_>,
        mut each: impl FnMut(&Message<'_>, &mut Vec<T>) -> Result<(), DecodeError>,
    ) -> Result<Vec<T>, KernelError> {
        for _ in 0..TRIES {
            let mut found = Vec::new();
            let before = self.generation()?;
            let end = self.ask(request, |message| each(message, &mut found))?;
            // The kernel does not mark a change that happens during the last part.
            if end == End::Whole && self.generation()? == before {
                return Ok(found);
            }
        }
        Err(KernelError::Unsteady { what: describe(request), tries: TRIES })
    }

    /// Sends a list request and reads all answers.
    fn ask(
        &mut self,
        request: Request<'_>,
        mut each: impl FnMut(&Message<'_>) -> Result<(), DecodeError>,
    ) -> Result<End, KernelError> {
        let seq = self.seq;
        self.seq = seq.wrapping_add(1);
        let lost = |errno| KernelError::NotListed { what: describe(request), errno };
        self.socket.drain().map_err(lost)?;
        self.socket.send(&encode_request(request, seq)).map_err(lost)?;
        let mut end = End::Whole;
        loop {
            for message in messages(self.socket.receive().map_err(lost)?) {
                let message = message?;
                if message.seq != seq {
                    continue;
                }
                if message.is_interrupted() {
                    end = End::Interrupted;
                }
                match message.reply()? {
                    Reply::Object => each(&message)?,
                    Reply::Answer(answer) => {
                        return Err(refused(request, Errno::from_raw(answer.errno)));
                    }
                    Reply::Overrun => return Err(lost(Errno::ENOBUFS)),
                    Reply::Done => return Ok(end),
                    Reply::Other => continue,
                }
                if matches!(request, Request::Generation) {
                    return Ok(end);
                }
            }
        }
    }
}

/// The keys that identify an element of a set.
fn keys(dumped: &DumpedElement) -> (&Bytes, Option<&Bytes>) {
    (&dumped.element.key, dumped.element.end.as_deref())
}

fn refused(request: Request<'_>, errno: Errno) -> KernelError {
    match refused_as_a_whole(errno) {
        KernelError::Failed { errno } | KernelError::Busy { errno } => {
            KernelError::NotListed { what: describe(request), errno }
        }
        error => error,
    }
}

fn describe(request: Request<'_>) -> String {
    match request {
        Request::Generation => "the generation".to_owned(),
        Request::Tables => "the tables".to_owned(),
        Request::Chains(table) => format!("the chains of {}", TableName(table)),
        Request::Rules(table) => format!("the rules of {}", TableName(table)),
        Request::Sets(table) => format!("the sets of {}", TableName(table)),
        Request::Elements(table, set) => format!("set {set} of {}", TableName(table)),
    }
}
