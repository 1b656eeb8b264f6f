//! Prints tables, sets, chains and rules in nft syntax, close to the output of `nft list`.
//!
//! For snapshots, traces and error messages. nft can read the output, but nearhop does not: it is
//! not an interface. Unlike in nft, the order does not depend on the history: sets and chains are
//! sorted by name, elements by their fields. An expression without nft syntax is printed in raw
//! form, so that nothing is omitted.

mod rule;
mod value;

use std::fmt::{self, Write};

use nearhop_core::Family;

use crate::fake::{Fake, family_word, label};
use nearhop_netfilter::object::{
    Chain, Data, Element, Field, Hook, HookPoint, MOST_DYNAMIC, Rule, Set, SetData, SetKind, Table,
    Verdict,
};

pub use rule::rule;

/// A table with its content, as `nft list table` would print it; none if it does not exist.
pub fn table(fake: &Fake, table: &Table) -> Option<String> {
    let comment = fake.comment(table)?;
    let mut text = format!("table {} {{\n", label(table));
    if !comment.is_empty() {
        push(&mut text, format_args!("\tcomment \"{comment}\"\n"));
    }
    let none = Default::default();
    let sets = fake.sets(table).map(|one| {
        let elements = fake.elements(table, &one.name).unwrap_or(&none);
        set(one, elements.values())
    });
    let chains = fake.chains(table).map(|one| chain(table.family, one));
    let blocks: Vec<String> = sets.chain(chains).collect();
    text.push_str(&blocks.join("\n"));
    text.push_str("}\n");
    Some(text)
}

/// A set or map with its elements, indented as in its table.
pub fn set<'a>(set: &Set, elements: impl IntoIterator<Item = &'a Element>) -> String {
    let word = if set.data == SetData::None { "set" } else { "map" };
    let mut text = format!("\t{word} {} {{\n\t\t{}\n", set.name, set_type(set));
    match set.kind {
        SetKind::Exact => {}
        SetKind::Interval => text.push_str("\t\tflags interval\n"),
        // The size that the proxy sets for dynamic sets.
        SetKind::Dynamic => {
            text.push_str(&format!("\t\tsize {MOST_DYNAMIC}\n\t\tflags dynamic,timeout\n"));
        }
    }
    if let Some(comment) = &set.comment {
        push(&mut text, format_args!("\t\tcomment \"{comment}\"\n"));
    }
    let mut elements: Vec<&Element> = elements.into_iter().collect();
    elements.sort_by_key(|one| value::order(&set.key, &one.key));
    if !elements.is_empty() {
        let elements: Vec<String> = elements.into_iter().map(|one| element(set, one)).collect();
        push(&mut text, format_args!("\t\telements = {{ {} }}\n", lines(set, &elements)));
    }
    text.push_str("\t}\n");
    text
}

/// nft prints two plain IPv4 addresses on a line, and one of anything else.
fn lines(set: &Set, elements: &[String]) -> String {
    let per_line = if set.key == [Field::Address(Family::Ipv4)] { 2 } else { 1 };
    let lines: Vec<String> = elements.chunks(per_line).map(|line| line.join(", ")).collect();
    lines.join(",\n\t\t\t     ")
}

/// A chain with its rules, indented as in its table.
pub fn chain(family: Family, chain: &Chain) -> String {
    let mut text = format!("\tchain {} {{\n", chain.name);
    if let Some(comment) = &chain.comment {
        push(&mut text, format_args!("\t\tcomment \"{comment}\"\n"));
    }
    if let Some(hook) = chain.hook {
        push(&mut text, format_args!("\t\t{}; policy accept;\n", self::hook(hook)));
    }
    for one in &chain.rules {
        push(&mut text, format_args!("\t\t{}\n", commented(family, one)));
    }
    text.push_str("\t}\n");
    text
}

/// A rule with its comment.
pub(crate) fn commented(family: Family, one: &Rule) -> String {
    let mut text = rule(family, &one.exprs);
    if let Some(comment) = &one.comment {
        push(&mut text, format_args!(" comment \"{comment}\""));
    }
    text
}

/// An element as in the element list of its set.
pub fn element(set: &Set, element: &Element) -> String {
    let mut text = value::key(&set.key, &element.key, element.end.as_deref());
    if let Some(comment) = &element.comment {
        push(&mut text, format_args!(" comment \"{comment}\""));
    }
    match (&element.data, &set.data) {
        (Data::None, _) => {}
        (Data::Verdict(one), _) => push(&mut text, format_args!(" : {}", verdict(one))),
        (Data::Value(bytes), SetData::Value(fields)) => {
            push(&mut text, format_args!(" : {}", value::key(fields, bytes, None)));
        }
        (Data::Value(bytes), _) => push(&mut text, format_args!(" : {bytes:?}")),
    }
    text
}

/// A verdict.
fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Drop => "drop".into(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

/// `type …` if the types of all fields have names, otherwise `typeof …`, as for a slot.
fn set_type(set: &Set) -> String {
    let value: &[Field] = if let SetData::Value(fields) = &set.data { fields } else { &[] };
    let by_example = set.key.iter().chain(value).any(|field| *field == Field::Slot);
    let word = |field: &Field| match (field, by_example) {
        (Field::Address(Family::Ipv4), false) => "ipv4_addr".into(),
        (Field::Address(Family::Ipv6), false) => "ipv6_addr".into(),
        (Field::Protocol, false) => "inet_proto".into(),
        (Field::Port, false) => "inet_service".into(),
        (Field::Address(family), true) => format!("{} daddr", family_word(*family)),
        (Field::Protocol, true) => "meta l4proto".into(),
        (Field::Port, true) => "th dport".into(),
        // Every modulus has the same type; `wire` uses two.
        (Field::Slot, _) => "numgen random mod 2".into(),
    };
    let join = |fields: &[Field]| fields.iter().map(word).collect::<Vec<String>>().join(" . ");
    let data = match &set.data {
        SetData::None => String::new(),
        SetData::Verdict => " : verdict".into(),
        SetData::Value(fields) => format!(" : {}", join(fields)),
    };
    format!("{} {}{data}", if by_example { "typeof" } else { "type" }, join(&set.key))
}

fn hook(hook: Hook) -> String {
    let point = match hook.point {
        HookPoint::Prerouting => "prerouting",
        HookPoint::Input => "input",
        HookPoint::Forward => "forward",
        HookPoint::Output => "output",
        HookPoint::Postrouting => "postrouting",
    };
    format!("type {} hook {point} priority {}", hook.kind.as_str(), priority(hook))
}

/// A priority by name, or by its distance of up to ten from a named one.
fn priority(hook: Hook) -> String {
    let known = [
        ("raw", -300, true),
        ("mangle", -150, true),
        ("dstnat", -100, hook.point == HookPoint::Prerouting),
        ("filter", 0, true),
        ("security", 50, true),
        ("srcnat", 100, hook.point == HookPoint::Postrouting),
    ];
    let near =
        known.iter().find(|(_, number, here)| *here && hook.priority.abs_diff(*number) <= 10);
    match near.map(|(name, number, _)| (name, hook.priority - number)) {
        None => hook.priority.to_string(),
        Some((name, 0)) => (*name).into(),
        Some((name, above @ 1..)) => format!("{name} + {above}"),
        Some((name, below)) => format!("{name} - {}", below.unsigned_abs()),
    }
}

fn push(text: &mut String, more: fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a string cannot fail");
}

impl fmt::Display for Fake {
    /// All tables, as `nft list ruleset` would print them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables().filter_map(|one| table(self, one)).try_for_each(|text| f.write_str(&text))
    }
}

#[cfg(test)]
mod tests;
