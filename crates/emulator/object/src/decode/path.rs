//! A place in an object while it is walked: a chain on the stack, written out only when there is
//! something to say about it. The normal case therefore costs no allocation.

use std::fmt::{self, Write};

/// A step below its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
    /// About how long the text of it is.
    length: usize,
}

/// Where a request is complained about at length, no more places than this are named.
pub(super) const MOST_NAMED: usize = 100;
/// Nor is more of a place written out: a hundred of them would fill the memory otherwise.
pub(super) const LONGEST_NAMED: usize = 1000;

/// How a place is reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    /// The top.
    Root,
    /// A key of a free map.
    Key(&'a str),
    /// A declared field: the struct that declares it, and its name.
    Field(&'a str, &'a str),
    /// An item of a list.
    Index(usize),
}

impl<'a> Path<'a> {
    /// The top.
    pub(super) const ROOT: Path<'static> = Path { parent: None, step: Step::Root, length: 0 };

    /// One step down.
    pub(super) fn down(&'a self, step: Step<'a>) -> Self {
        let length = match step {
            Step::Root | Step::Index(_) => 1,
            Step::Key(name) | Step::Field(_, name) => name.len() + 1,
        };
        Self { parent: Some(self), step, length: self.length + length }
    }

    /// Whether this is the top.
    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// `spec.ports[0].nope` for a key below this place; cut if it is very long.
    pub(super) fn with_key(&self, key: &str) -> String {
        let path = self.down(Step::Key(key));
        let mut text = path.to_string();
        if path.is_long() {
            text.truncate(text.floor_char_boundary(LONGEST_NAMED));
            text.shrink_to_fit();
        }
        text
    }

    /// Whether the text of it would be very long.
    pub(super) fn is_long(&self) -> bool {
        self.length > LONGEST_NAMED
    }

    /// The declared fields on the way here, innermost first, as (struct, field).
    pub(super) fn fields(&self) -> Vec<(&'a str, &'a str)> {
        let mut found = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Field(owner, name) = path.step {
                found.push((owner, name));
            }
            at = path.parent;
        }
        found
    }

    /// The declared field through which this place was reached, and how far below it the place is.
    pub(super) fn nearest_field(&self) -> Option<(&'a str, &'a str, usize)> {
        let mut below = 0;
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Field(owner, name) = path.step {
                return Some((owner, name, below));
            }
            below += 1;
            at = path.parent;
        }
        None
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
