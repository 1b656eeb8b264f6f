//! Notifications of the kernel's nftables group: which tables a commit changed, and at its end which
//! process made it.

use nearhop_core::Name;

use crate::object::Table;

use super::abi::{family_of, generation, message};
use super::attr::{DecodeError, body};
use super::decode::Message;

/// Every object names its table in its first attribute.
const TABLE: u16 = 1;

/// What a message tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Something in this table, or the table itself, has changed.
    Changed(Table),
    /// The commit is complete.
    Committed(Author),
    /// Nothing about tables of families `ip` and `ip6`.
    Other,
}

/// Who made a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The process, by its number on the host.
    pub pid: Option<u32>,
    /// The name of its program.
    pub name: Option<Name>,
}

/// Reads what a message tells.
///
/// # Errors
/// It is broken.
pub fn decode_news(message: &Message<'_>) -> Result<News, DecodeError> {
    if message.kind >> 8 != message::NFTABLES {
        return Ok(News::Other);
    }
    let (family, attrs) = body(message.payload)?;
    if message.kind == message::NEW_GENERATION {
        let mut author = Author::default();
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                generation::PROCESS => author.pid = Some(attr.be32()?),
                generation::PROGRAM => author.name = Some(Name::from(attr.text()?)),
                _ => {}
            }
        }
        return Ok(News::Committed(author));
    }
    let Some(family) = family_of(family) else { return Ok(News::Other) };
    for attr in attrs {
        let attr = attr?;
        if attr.kind == TABLE {
            return Ok(News::Changed(Table { family, name: Name::from(attr.text()?) }));
        }
    }
    Ok(News::Other)
}
