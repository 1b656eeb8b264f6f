//! Runs the operations of a batch in order, with rollback.
//!
//! Each operation records what it replaces; a refusal restores everything in reverse order.

use nearhop_core::Name;

use super::check::{Checked, check_element, check_hook, check_rule};
use super::code::Refusal;
use super::validate::validate;
use super::{Code, Fake, FakeError, SetState, TableState, label};
use nearhop_netfilter::object::{Batch, Bytes, Chain, Element, Op, Set, SetData, SetKind, Table};

/// The state before a change.
enum Undo {
    Table(Option<TableState>),
    Set(Name, Option<SetState>),
    Chain(Name, Option<Chain>),
    Element(Name, Bytes, Option<Element>),
}

/// When the paths from base chains are validated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Validate {
    /// Once at the end, as the kernel does first: an error that a later operation fixes does not
    /// count.
    AtEnd,
    /// After each operation, as the kernel does in a second run to find the refused one.
    AfterEach,
}

type Step = Result<(), Refusal>;

impl Fake {
    /// Runs a batch; returns whether anything changed.
    pub(super) fn run(&mut self, batch: &Batch) -> Result<bool, FakeError> {
        match self.attempt(batch, Validate::AtEnd) {
            Err(FakeError { op: None, .. }) => self.attempt(batch, Validate::AfterEach),
            result => result,
        }
    }

    fn attempt(&mut self, batch: &Batch, when: Validate) -> Result<bool, FakeError> {
        let mut undo = Vec::new();
        let result = self.steps(batch, when, &mut undo);
        let changed = !undo.is_empty();
        if result.is_err() {
            for step in undo.into_iter().rev() {
                self.restore(&batch.table, step);
            }
        }
        result.map(|()| changed)
    }

    fn steps(
        &mut self,
        batch: &Batch,
        when: Validate,
        undo: &mut Vec<Undo>,
    ) -> Result<(), FakeError> {
        let mut doubtful = false;
        for (index, op) in batch.ops.iter().enumerate() {
            self.step(&batch.table, op, undo).map_err(|refusal| refusal.at(Some(index)))?;
            if self.may_lead_elsewhere(&batch.table, op) {
                doubtful = true;
                if when == Validate::AfterEach {
                    self.validated(&batch.table).map_err(|refusal| refusal.at(Some(index)))?;
                }
            }
        }
        if doubtful {
            self.validated(&batch.table).map_err(|refusal| refusal.at(None))
        } else {
            Ok(())
        }
    }

    fn may_lead_elsewhere(&self, table: &Table, op: &Op) -> bool {
        match op {
            Op::AddChain(chain) => !chain.rules.is_empty(),
            Op::AddElements { set, .. } => self
                .tables
                .get(table)
                .and_then(|state| state.sets.get(set))
                .is_some_and(|state| state.set.data == SetData::Verdict),
            _ => false,
        }
    }

    fn validated(&self, table: &Table) -> Step {
        self.tables.get(table).map_or(Ok(()), validate)
    }

    fn restore(&mut self, table: &Table, step: Undo) {
        if let Undo::Table(before) = step {
            match before {
                Some(state) => drop(self.tables.insert(table.clone(), state)),
                None => drop(self.tables.remove(table)),
            }
            return;
        }
        let state = self.tables.get_mut(table).expect("the step was taken in this table");
        match step {
            Undo::Table(_) => {}
            Undo::Set(name, before) => put(&mut state.sets, name, before),
            Undo::Chain(name, before) => put(&mut state.chains, name, before),
            Undo::Element(set, key, before) => {
                let set = state.sets.get_mut(&set).expect("the step was taken in this set");
                put(&mut set.elements, key, before);
            }
        }
    }

    fn step(&mut self, table: &Table, op: &Op, undo: &mut Vec<Undo>) -> Step {
        match op {
            Op::AddTable { comment } => self.add_table(table, comment, undo),
            Op::DeleteTable => {
                let state = self.tables.remove(table);
                undo.push(Undo::Table(Some(state.ok_or_else(|| missing("table", &label(table)))?)));
                Ok(())
            }
            Op::AddSet(set) => self.state(table)?.add_set(set, undo),
            Op::DeleteSet(name) => self.state(table)?.delete_set(name, undo),
            Op::AddChain(chain) => self.state(table)?.add_chain(table, chain, undo),
            Op::FlushChain(name) => self.state(table)?.flush_chain(name, undo),
            Op::DeleteChain(name) => self.state(table)?.delete_chain(name, undo),
            Op::AddElements { set, elements } => {
                self.injected(set, elements)?;
                self.state(table)?.add_elements(set, elements, undo)
            }
            Op::AddTimed { set, elements } => {
                let elements: Vec<Element> =
                    elements.iter().map(|timed| timed.element.clone()).collect();
                self.state(table)?.add_timed(set, &elements, undo)
            }
            Op::DeleteElements { set, elements } => {
                self.state(table)?.delete_elements(set, elements, undo)
            }
        }
    }

    fn add_table(&mut self, table: &Table, comment: &Name, undo: &mut Vec<Undo>) -> Step {
        if !self.tables.contains_key(table) {
            let comment = comment.clone();
            let (sets, chains) = Default::default();
            self.tables.insert(table.clone(), TableState { comment, sets, chains });
            undo.push(Undo::Table(None));
        }
        Ok(())
    }

    /// A fault that a test has injected.
    fn injected(&self, set: &Name, elements: &[Element]) -> Step {
        if self.refuse_elements.is_empty() {
            return Ok(());
        }
        let refused =
            |element: &&Element| self.refuse_elements.contains(&(set.clone(), element.key));
        match elements.iter().find(refused) {
            Some(element) => Err(about_element(Code::NoMemory, "add to", set, element)),
            None => Ok(()),
        }
    }

    fn state(&mut self, table: &Table) -> Result<&mut TableState, Refusal> {
        self.tables.get_mut(table).ok_or_else(|| missing("table", &label(table)))
    }
}

fn put<K: Ord, V>(map: &mut std::collections::BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

fn missing(what: &str, name: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("{what} {name} does not exist"))
}

fn about_element(code: Code, verb: &str, set: &Name, element: &Element) -> Refusal {
    Refusal::new(code, format!("{verb} {set}: element {:?}", element.key))
}

impl TableState {
    fn add_set(&mut self, set: &Set, undo: &mut Vec<Undo>) -> Step {
        if let Some(there) = self.sets.get(&set.name) {
            let there = &there.set;
            // The kernel does not compare comments.
            let same = (&there.key, &there.data, there.kind) == (&set.key, &set.data, set.kind);
            let about = || format!("set {} exists with another definition", set.name);
            return if same { Ok(()) } else { Err(Refusal::new(Code::Exists, about())) };
        }
        if set.key.is_empty() || set.data == SetData::Value(Vec::new()) {
            return Err(Refusal::new(Code::Invalid, format!("set {} has no fields", set.name)));
        }
        let state = SetState { set: set.clone(), elements: Default::default() };
        self.sets.insert(set.name.clone(), state);
        undo.push(Undo::Set(set.name.clone(), None));
        Ok(())
    }

    fn delete_set(&mut self, name: &Name, undo: &mut Vec<Undo>) -> Step {
        if let Some(chain) = self.user_of_set(name).filter(|_| self.sets.contains_key(name)) {
            let about = format!("a rule in chain {chain} uses set {name}");
            return Err(Refusal::new(Code::Busy, about));
        }
        let state = self.sets.remove(name).ok_or_else(|| missing("set", name))?;
        undo.push(Undo::Set(name.clone(), Some(state)));
        Ok(())
    }

    fn add_chain(&mut self, table: &Table, chain: &Chain, undo: &mut Vec<Undo>) -> Step {
        match self.chains.get(&chain.name) {
            Some(there) => {
                if chain.hook.is_some() && chain.hook != there.hook {
                    let about = format!("chain {} is attached to another hook", chain.name);
                    let regular = there.hook.is_none();
                    let code = if regular { Code::Exists } else { Code::HookDiffers };
                    return Err(Refusal::new(code, about));
                }
                undo.push(Undo::Chain(chain.name.clone(), Some(there.clone())));
            }
            None => {
                check_hook(chain)?;
                let empty = Chain { rules: Vec::new(), ..chain.clone() };
                self.chains.insert(chain.name.clone(), empty);
                undo.push(Undo::Chain(chain.name.clone(), None));
            }
        }
        for (index, rule) in chain.rules.iter().enumerate() {
            check_rule(table, self, rule).map_err(|refusal| Refusal {
                about: format!("chain {}, rule {index}: {}", chain.name, refusal.about),
                ..refusal
            })?;
            let there = self.chains.get_mut(&chain.name).expect("added above");
            there.rules.push(rule.clone());
        }
        Ok(())
    }

    fn flush_chain(&mut self, name: &Name, undo: &mut Vec<Undo>) -> Step {
        let chain = self.chains.get_mut(name).ok_or_else(|| missing("chain", name))?;
        if !chain.rules.is_empty() {
            undo.push(Undo::Chain(name.clone(), Some(chain.clone())));
            chain.rules.clear();
        }
        Ok(())
    }

    fn delete_chain(&mut self, name: &Name, undo: &mut Vec<Undo>) -> Step {
        let chain = self.chains.get(name).ok_or_else(|| missing("chain", name))?;
        if !chain.rules.is_empty() {
            return Err(Refusal::new(
                Code::Busy,
                format!("chain {name} has rules: flush it first"),
            ));
        }
        if let Some(user) = self.user_of_chain(name) {
            return Err(Refusal::new(Code::Busy, format!("{user} leads to chain {name}")));
        }
        let chain = self.chains.remove(name);
        undo.push(Undo::Chain(name.clone(), chain));
        Ok(())
    }

    fn add_elements(&mut self, name: &Name, elements: &[Element], undo: &mut Vec<Undo>) -> Step {
        for element in elements {
            let set = self.sets.get(name).ok_or_else(|| missing("set", name))?;
            let checked = check_element(&self.chains, set, element);
            match checked.map_err(|code| about_element(code, "add to", name, element))? {
                Checked::There => continue,
                Checked::New => {}
            }
            let set = self.sets.get_mut(name).expect("found above");
            set.elements.insert(element.key, element.clone());
            undo.push(Undo::Element(name.clone(), element.key, None));
        }
        self.sets.get(name).map(|_| ()).ok_or_else(|| missing("set", name))
    }

    fn add_timed(&mut self, name: &Name, elements: &[Element], undo: &mut Vec<Undo>) -> Step {
        let set = self.sets.get(name).ok_or_else(|| missing("set", name))?;
        if set.set.kind != SetKind::Dynamic {
            return Err(Refusal::new(Code::Invalid, format!("elements of {name} do not expire")));
        }
        self.add_elements(name, elements, undo)
    }

    fn delete_elements(&mut self, name: &Name, elements: &[Element], undo: &mut Vec<Undo>) -> Step {
        let set = self.sets.get_mut(name).ok_or_else(|| missing("set", name))?;
        let len: usize = set.set.key.iter().map(|field| field.padded_len()).sum();
        for element in elements {
            if element.key.as_slice().len() != len {
                return Err(about_element(Code::Invalid, "delete from", name, element));
            }
            let there = set.elements.get(&element.key).filter(|there| there.end == element.end);
            if there.is_none() {
                return Err(about_element(Code::NotFound, "delete from", name, element));
            }
            let before = set.elements.remove(&element.key);
            undo.push(Undo::Element(name.clone(), element.key, before));
        }
        Ok(())
    }
}
