//! Decodes notifications of the kernel's nftables group: which tables a commit changed, and at its
//! end the process that made it.

use nearhop_core::Name;

use crate::object::Table;

use super::abi::{family_of, generation, message};
use super::attr::{DecodeError, body};
use super::decode::Message;

/// The attribute of the table's name, the same in every object.
const TABLE: u16 = 1;

/// The content of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The table, or an object in it, has changed.
    Changed(Table),
    /// The commit is complete.
    Committed(Author),
    /// Unrelated to tables of the families `ip` and `ip6`.
    Other,
}

/// The process that made a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// Its process id on the host.
    pub pid: Option<u32>,
    /// Its program name.
    pub name: Option<Name>,
}

/// Decodes a notification.
///
/// # Errors
/// It is invalid.
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
