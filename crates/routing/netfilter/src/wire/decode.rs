//! Splits received bytes into messages and decodes the kernel's answers. `dump` decodes listed
//! objects.

use super::abi::{answer, generation, message};
use super::attr::{Attrs, DecodeError, body};

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    flags: u16,
    /// Sequence number of the answered message.
    pub seq: u32,
    /// Port number of the socket that caused it, if it is a notification.
    pub sender: u32,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

/// The kernel's answer to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Zero, or a positive error number.
    pub errno: i32,
    /// The extended error message.
    pub message: Option<String>,
    /// Offset of the fault in the message.
    pub offset: Option<usize>,
}

/// What a message means for a pending request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A listed object, or a notification about one.
    Object,
    /// The answer to a message; also the end of an aborted list.
    Answer(Answer),
    /// The end of a list.
    Done,
    /// The kernel dropped messages.
    Overrun,
    /// Any other message.
    Other,
}

impl Message<'_> {
    /// Whether objects changed during the dump, so that the list is invalid.
    pub fn is_interrupted(&self) -> bool {
        self.flags & message::DUMP_INTERRUPTED != 0
    }

    /// Decodes the meaning of the message.
    pub fn reply(&self) -> Result<Reply, DecodeError> {
        Ok(match self.kind {
            message::ERROR => Reply::Answer(self.answer()?),
            message::DONE => self.end_of_list(),
            message::OVERRUN => Reply::Overrun,
            kind if [message::NFTABLES, message::CONNTRACK].contains(&(kind >> 8)) => Reply::Object,
            _ => Reply::Other,
        })
    }

    /// The generation, if the message contains it.
    pub fn generation(&self) -> Result<Option<u32>, DecodeError> {
        if self.kind != message::NEW_GENERATION {
            return Ok(None);
        }
        for attr in body(self.payload)?.1 {
            let attr = attr?;
            if attr.kind == generation::ID {
                return attr.be32().map(Some);
            }
        }
        Err(DecodeError::Missing { object: "generation", part: "number" })
    }

    fn answer(&self) -> Result<Answer, DecodeError> {
        const HEAD: usize = 4 + message::HEADER;
        let short = DecodeError::Message { said: HEAD, have: self.payload.len() };
        let (errno, rest) = self.payload.split_first_chunk().ok_or(short.clone())?;
        let (head, rest) = rest.split_first_chunk::<{ message::HEADER }>().ok_or(short)?;
        let mut found = Answer { errno: positive(*errno), message: None, offset: None };
        if self.flags & message::ACK_ATTRS == 0 {
            return Ok(found);
        }
        // The whole answered message precedes the attributes, unless it is capped.
        let skip = if self.flags & message::CAPPED != 0 {
            0
        } else {
            let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
            len.saturating_sub(message::HEADER).saturating_add(3) & !3
        };
        for attr in Attrs::new(rest.get(skip..).unwrap_or_default()) {
            let attr = attr?;
            match attr.kind {
                answer::MESSAGE => found.message = Some(attr.text()?.to_owned()),
                answer::OFFSET => found.offset = Some(attr.ne32()? as usize),
                _ => {}
            }
        }
        Ok(found)
    }

    /// A list may end with an error, for example if its set was deleted.
    fn end_of_list(&self) -> Reply {
        match self.payload.first_chunk().map_or(0, |errno| positive(*errno)) {
            0 => Reply::Done,
            errno => Reply::Answer(Answer { errno, message: None, offset: None }),
        }
    }
}

/// Converts the kernel's negative error number.
fn positive(errno: [u8; 4]) -> i32 {
    i32::from_ne_bytes(errno).saturating_neg()
}

/// Splits the bytes of one `recvmsg` into messages. Ends after the first invalid one.
pub fn messages(bytes: &[u8]) -> Messages<'_> {
    Messages { rest: bytes }
}

/// Iterates over messages.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some((head, _)) = rest.split_first_chunk::<{ message::HEADER }>() else {
            return Some(Err(DecodeError::Message { said: message::HEADER, have: rest.len() }));
        };
        let said = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(payload) = rest.get(message::HEADER..said) else {
            return Some(Err(DecodeError::Message { said, have: rest.len() }));
        };
        self.rest = rest.get(said.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Message {
            kind: u16::from_ne_bytes([head[4], head[5]]),
            flags: u16::from_ne_bytes([head[6], head[7]]),
            seq: u32::from_ne_bytes([head[8], head[9], head[10], head[11]]),
            sender: u32::from_ne_bytes([head[12], head[13], head[14], head[15]]),
            payload,
        }))
    }
}
