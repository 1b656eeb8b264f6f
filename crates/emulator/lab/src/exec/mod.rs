//! `lab exec`: runs a command in a Pod, on a node, outside the cluster or in the control plane.
//!
//! ```text
//!   place      the caller's side, for a command in a network namespace of the lab
//!   pod        the caller's side, for a command in a Pod, through the API server
//!   channel    messages and file descriptors on the control socket
//!   shim       the lab's side: one process per command, and the first process of its PID namespace
//!   terminal   the caller's terminal, and new ones
//!   signals    signals of the caller
//! ```
//!
//! In a network namespace the command gets the caller's own file descriptors, over the control socket
//! (`SCM_RIGHTS`). So output is not copied and not stored, a closed pipe stops the command as a local
//! one, and the supervisor does not depend on the caller's speed. With a terminal the caller creates
//! the pair, passes the command's end and copies at its own end: a terminal can be the controlling one
//! of one session only, so the command cannot have the caller's.

mod channel;
pub mod place;
pub mod pod;
pub mod shim;
mod signals;
mod terminal;

use serde::{Deserialize, Serialize};

pub use self::shim::Stage;

/// A command, and how it is connected to the caller.
#[derive(Clone, Debug)]
pub struct Session {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Standard input.
    pub input: Input,
    /// Where it reads and writes.
    pub screen: Screen,
}

/// Standard input of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Empty.
    Empty,
    /// The caller's.
    Passed,
}

/// Where a command reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Screen {
    /// Three separate streams.
    Streams,
    /// A terminal of its own.
    Terminal,
}

impl Session {
    /// Gives up the terminal if it would read from something else, as kubectl does: a terminal
    /// changes input, for example it acts on byte 3. Returns a warning.
    pub fn check_terminal(&mut self) -> Option<&'static str> {
        if self.screen == Screen::Terminal
            && self.input == Input::Passed
            && !terminal::is_input_terminal()
        {
            self.screen = Screen::Streams;
            return Some("standard input is not a terminal, so -t has no effect");
        }
        None
    }
}
