//! `facts/openapi.txt`: facts about built-in structs that their shapes do not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

static TEXT: &str = include_str!("../facts/openapi.txt");

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    Facts::parse(TEXT).expect("facts/openapi.txt is part of the build and tested")
});

/// All of them. Keys are `core.v1.ServiceSpec.type` and `core.v1.ServiceSpec`.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) required: BTreeSet<&'static str>,
    pub(super) optional: BTreeSet<&'static str>,
    pub(super) enums: BTreeMap<&'static str, Vec<&'static str>>,
    pub(super) refs: BTreeMap<&'static str, &'static str>,
    pub(super) also: BTreeMap<&'static str, Map<String, Value>>,
    pub(super) deleted: BTreeSet<&'static str>,
    pub(super) about: BTreeMap<&'static str, &'static str>,
}

/// The facts, read once.
pub(super) fn facts() -> &'static Facts {
    &FACTS
}

/// The text itself: part of what documents are made of.
pub(super) fn source() -> &'static str {
    TEXT
}

impl Facts {
    fn parse(text: &'static str) -> Result<Self, String> {
        let mut facts = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            facts.add(line).ok_or_else(|| format!("cannot be read: {line}"))?;
        }
        Ok(facts)
    }

    fn add(&mut self, line: &'static str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let names = rest.split(' ');
        let entry = rest.split_once(' ');
        match word {
            "required" => self.required.extend(names),
            "optional" => self.optional.extend(names),
            "deleted" => self.deleted.extend(names),
            "enum" => {
                let values = entry?.1.split(' ').map(|value| if value == "-" { "" } else { value });
                self.enums.insert(entry?.0, values.collect());
            }
            "ref" => drop(self.refs.insert(entry?.0, entry?.1)),
            "also" => drop(self.also.insert(entry?.0, serde_json::from_str(entry?.1).ok()?)),
            "about" => drop(self.about.insert(entry?.0, entry?.1)),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearhop_object::builtin::schema;

    #[test]
    fn every_fact_names_an_existing_field() {
        let facts = Facts::parse(TEXT).expect("facts/openapi.txt");
        let fields = facts.required.iter().chain(&facts.optional).chain(facts.enums.keys());
        for field in fields.chain(facts.refs.keys()) {
            let (owner, name) = field.rsplit_once('.').expect("the fact names a field");
            let owner = schema(owner).unwrap_or_else(|| panic!("no struct {owner}"));
            assert!(owner.node().child(name).is_some(), "no field {field}");
        }
        for kind in &facts.deleted {
            assert!(schema(kind).is_some(), "no kind {kind}");
        }
        assert_eq!(facts.enums["core.v1.ServiceSpec.ipFamilies"], ["", "IPv4", "IPv6"]);
    }
}
