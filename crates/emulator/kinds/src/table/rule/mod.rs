//! Cells that need code: one function each, by its name in `columns.txt`.

mod event;
mod network;
mod node;
mod other;
mod pod;
mod storage;
mod workload;

use jiff::Timestamp;
use serde_json::Value;

use super::column::{list, text};

pub(crate) use pod::finished as pod_finished;

/// Makes one cell of an object.
pub(super) type Rule = fn(&Value, Timestamp) -> Value;

/// The rule with a name.
pub(super) fn find(name: &str) -> Option<Rule> {
    let families = [
        event::RULES,
        network::RULES,
        node::RULES,
        other::RULES,
        pod::RULES,
        storage::RULES,
        workload::RULES,
    ];
    families.into_iter().flatten().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
}

/// Rules by name.
type Rules = &'static [(&'static str, Rule)];

/// The entry of a list of conditions that has a type.
fn condition<'a>(object: &'a Value, path: &str, kind: &str) -> Option<&'a Value> {
    list(object, path).iter().find(|condition| text(condition, "type") == kind)
}

/// The first items, and the number of others.
fn at_most(most: usize, items: Vec<String>) -> String {
    let more = items.len().saturating_sub(most);
    let shown = items.into_iter().take(most).collect::<Vec<_>>().join(",");
    if more > 0 { format!("{shown} + {more} more...") } else { shown }
}

/// A text, or a default if it is empty.
pub(super) fn or(text: &str, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text.to_owned() }
}
