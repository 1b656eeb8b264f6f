//! The current path in an object during a walk: a linked list on the stack, formatted only for
//! messages. A walk without errors therefore needs no allocation.

use std::fmt::{self, Write};

/// A step, with its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
    /// The approximate length of its text.
    length: usize,
}

/// A reply with many errors names at most this many paths.
pub(super) const MOST_NAMED: usize = 100;
/// A path in a message is cut at about this length, because a hundred long ones would need too much
/// memory.
pub(super) const LONGEST_NAMED: usize = 1000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    Root,
    /// A key of a map with arbitrary keys.
    Key(&'a str),
    /// A declared field: the struct that declares it, and its name.
    Field(&'a str, &'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> = Path { parent: None, step: Step::Root, length: 0 };

    pub(super) fn down(&'a self, step: Step<'a>) -> Self {
        let length = match step {
            Step::Root | Step::Index(_) => 1,
            Step::Key(name) | Step::Field(_, name) => name.len() + 1,
        };
        Self { parent: Some(self), step, length: self.length + length }
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// The path of a key below this one, such as `spec.ports[0].nope`; cut if it is very long.
    pub(super) fn with_key(&self, key: &str) -> String {
        let path = self.down(Step::Key(key));
        let mut text = path.to_string();
        if path.is_long() {
            text.truncate(text.floor_char_boundary(LONGEST_NAMED));
            text.shrink_to_fit();
        }
        text
    }

    pub(super) fn is_long(&self) -> bool {
        self.length > LONGEST_NAMED
    }

    /// The declared fields in this path, innermost first, as (struct, field).
    pub(super) fn fields(&self) -> Vec<(&'a str, &'a str)> {
        self.steps().filter_map(as_field).collect()
    }

    /// The innermost declared field in this path, and the number of steps below it.
    pub(super) fn nearest_field(&self) -> Option<(&'a str, &'a str, usize)> {
        let mut fields = self.steps().map(as_field).enumerate();
        fields.find_map(|(below, field)| field.map(|(owner, name)| (owner, name, below)))
    }

    /// The steps of this path, innermost first.
    fn steps(&self) -> impl Iterator<Item = Step<'a>> {
        std::iter::successors(Some(self), |path| path.parent).map(|path| path.step)
    }
}

fn as_field<'a>(step: Step<'a>) -> Option<(&'a str, &'a str)> {
    match step {
        Step::Field(owner, name) => Some((owner, name)),
        _ => None,
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above_is_root = match self.parent {
            Some(parent) => {
                parent.fmt(f)?;
                parent.is_root()
            }
            None => true,
        };
        match self.step {
            Step::Root => Ok(()),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(name) | Step::Field(_, name) => {
                if !above_is_root {
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
        }
    }
}
