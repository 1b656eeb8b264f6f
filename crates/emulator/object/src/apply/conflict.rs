//! Conflicts: fields that an apply would change and that other managers own, and their messages.

use super::element::quoted;
use super::managed::{Manager, Operation};

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager that owns it.
    pub manager: Manager,
    /// The path, such as `.spec.ports[port=80,protocol="TCP"].name`.
    pub path: String,
}

impl Conflict {
    /// The message of the cause (`reason: FieldManagerConflict`, `field`: the path).
    pub fn cause_message(&self) -> String {
        format!("conflict with {}", shown(&self.manager))
    }
}

/// The message of the reply (409, reason `Conflict`).
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", one.cause_message(), one.path);
    }
    let mut lines = Vec::new();
    let mut last: Option<&Manager> = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", shown(&conflict.manager)));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Sorts by manager, as in the message; keeps the order of each manager's paths.
pub(super) fn sort(conflicts: &mut [Conflict]) {
    conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
}

fn shown(manager: &Manager) -> String {
    let mut out = quoted(&manager.name);
    if !manager.subresource.is_empty() {
        out.push_str(" with subresource ");
        out.push_str(&quoted(&manager.subresource));
    }
    if manager.operation == Operation::Update {
        out.push_str(" using ");
        out.push_str(&manager.api_version);
    }
    out
}
