//! The netlink message format: messages with a header contain attributes with a length and a type,
//! which may be nested. Each starts at a multiple of four bytes.
//!
//! The writer appends to one buffer and never fails. The reader never reads out of bounds, whatever
//! its input. This module does not interpret the types.

use thiserror::Error;

use super::abi::message;

const HEADER: usize = 4;
/// The flag for nested attributes in a type.
const NESTED: u16 = 0x8000;
/// The mask for the type without flags.
const KIND: u16 = 0x3fff;

/// Maximum length of an attribute without nested attributes. The kernel refuses names of more than
/// 255 bytes and values of more than 64, so it always refuses what is truncated here.
const LONGEST: usize = 512;

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub seq: u32,
    /// `nfgen_family`.
    pub family: u8,
    /// `res_id`.
    pub resource: u16,
}

/// The start of a message or an attribute that is not closed yet.
#[derive(Clone, Copy, Debug)]
#[must_use = "what was opened has no length before it is closed"]
pub struct Open(usize);

/// Writes messages and attributes.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates a writer with this capacity.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// Number of bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The written bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a message.
    pub fn open_message(&mut self, head: Head) -> Open {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&head.kind.to_ne_bytes());
        self.bytes.extend_from_slice(&head.flags.to_ne_bytes());
        self.bytes.extend_from_slice(&head.seq.to_ne_bytes());
        // The port of the sender, which the kernel knows.
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&[head.family, 0]);
        self.bytes.extend_from_slice(&head.resource.to_be_bytes());
        Open(at)
    }

    /// Ends a message.
    pub fn close_message(&mut self, open: Open) {
        let len = (self.bytes.len() - open.0) as u32;
        self.bytes[open.0..open.0 + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Sets more flags of the closed message that starts at `at`.
    pub(crate) fn add_flags(&mut self, at: usize, flags: u16) {
        let place = &mut self.bytes[at + 6..at + 8];
        let flags = flags | u16::from_ne_bytes([place[0], place[1]]);
        place.copy_from_slice(&flags.to_ne_bytes());
    }

    /// Begins a nested attribute.
    pub fn open(&mut self, kind: u16) -> Open {
        let at = self.bytes.len();
        self.head(0, kind | NESTED);
        Open(at)
    }

    /// Ends a nested attribute. It has less than 64 KiB: the caller splits lists.
    pub fn close(&mut self, open: Open) {
        let len = self.bytes.len() - open.0;
        debug_assert!(len <= usize::from(u16::MAX), "an attribute of {len} bytes");
        self.bytes[open.0..open.0 + 2].copy_from_slice(&(len as u16).to_ne_bytes());
    }

    /// Writes a nested attribute with the attributes that `inside` writes.
    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let open = self.open(kind);
        inside(self);
        self.close(open);
    }

    /// Writes an attribute with these bytes.
    pub fn put(&mut self, kind: u16, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        self.head(bytes.len(), kind);
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Writes an 8-bit number.
    pub fn byte(&mut self, kind: u16, number: u8) {
        self.put(kind, &[number]);
    }

    /// Writes a 32-bit number, big-endian.
    pub fn be32(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_be_bytes());
    }

    /// Writes a 64-bit number, big-endian.
    pub(crate) fn be64(&mut self, kind: u16, number: u64) {
        self.put(kind, &number.to_be_bytes());
    }

    /// Writes a zero-terminated string.
    pub fn text(&mut self, kind: u16, text: &str) {
        let text = &text.as_bytes()[..text.len().min(LONGEST - 1)];
        self.head(text.len() + 1, kind);
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
        self.pad();
    }

    fn head(&mut self, len: usize, kind: u16) {
        self.bytes.extend_from_slice(&((HEADER + len) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        let padding = self.bytes.len().next_multiple_of(4) - self.bytes.len();
        self.bytes.extend_from_slice(&[0; 3][..padding]);
    }
}

/// Why bytes from the kernel cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A truncated message.
    #[error("a netlink message has the length {said}, but only {have} bytes are present")]
    Message {
        /// Length in its header.
        said: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// A truncated attribute.
    #[error("netlink attribute {kind} has the length {said}, but only {have} bytes are present")]
    Attribute {
        /// Its type.
        kind: u16,
        /// Length in its header.
        said: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// A number of the wrong size.
    #[error("netlink attribute {kind} has {have} bytes instead of {want}")]
    Size {
        /// Its type.
        kind: u16,
        /// Actual length.
        have: usize,
        /// Expected length.
        want: usize,
    },
    /// A string that is not valid UTF-8.
    #[error("netlink attribute {kind} is not UTF-8: {text:?}")]
    Text {
        /// Its type.
        kind: u16,
        /// The string, with replacement characters.
        text: String,
    },
    /// A required attribute is missing.
    #[error("the kernel's {object} has no {part}")]
    Missing {
        /// The object, for example a chain or an element.
        object: &'static str,
        /// The attribute, for example a name or a key.
        part: &'static str,
    },
    /// A longer value than nearhop ever writes.
    #[error(
        "an element holds {0} bytes where nearhop writes 40 at most: \
         another program changed the table; the proxy must rewrite it"
    )]
    TooLong(usize),
    /// A verdict that nearhop never writes.
    #[error(
        "an element has verdict {0}, which nearhop never writes: \
         another program changed the table; the proxy must rewrite it"
    )]
    Verdict(i32),
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Its type.
    pub kind: u16,
    /// Its content.
    pub bytes: &'a [u8],
}

impl<'a> Attr<'a> {
    /// The nested attributes.
    pub fn attrs(self) -> Attrs<'a> {
        Attrs::new(self.bytes)
    }

    /// Reads a 32-bit number, big-endian.
    pub fn be32(self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a 64-bit number, big-endian.
    pub(crate) fn be64(self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a 32-bit number in the machine's byte order.
    pub(crate) fn ne32(self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Reads a string, with or without a terminating zero.
    pub fn text(self) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes.strip_suffix(&[0]).unwrap_or(self.bytes);
        std::str::from_utf8(bytes).map_err(|_| DecodeError::Text {
            kind: self.kind,
            text: String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned(),
        })
    }

    /// Reads exactly `N` bytes.
    pub(crate) fn array<const N: usize>(self) -> Result<[u8; N], DecodeError> {
        let (kind, have) = (self.kind, self.bytes.len());
        self.bytes.try_into().map_err(|_| DecodeError::Size { kind, have, want: N })
    }
}

/// Iterates over attributes. Ends after the first invalid one.
#[derive(Clone, Debug)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Iterates over the attributes in these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Result<Attr<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Fewer bytes than a header are padding.
        let (head, _) = self.rest.split_first_chunk::<HEADER>()?;
        let said = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & KIND;
        let rest = std::mem::take(&mut self.rest);
        let Some(bytes) = rest.get(HEADER..said) else {
            return Some(Err(DecodeError::Attribute { kind, said, have: rest.len() }));
        };
        self.rest = rest.get(said.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Attr { kind, bytes }))
    }
}

/// The family and the attributes of a netfilter message, from the bytes after `nlmsghdr`.
pub(crate) fn body(payload: &[u8]) -> Result<(u8, Attrs<'_>), DecodeError> {
    let (head, attrs) = payload
        .split_first_chunk::<{ message::FAMILY_HEADER }>()
        .ok_or(DecodeError::Message { said: message::FAMILY_HEADER, have: payload.len() })?;
    Ok((head[0], Attrs::new(attrs)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn attribute_lengths_do_not_include_padding() {
        let mut w = Writer::default();
        w.text(3, "abc");
        w.nest(4, |w| {
            w.byte(1, 7);
            w.be32(2, 0x0102_0304);
        });
        let expected = [
            [8, 0, 3, 0, b'a', b'b', b'c', 0].as_slice(),
            &[20, 0, 4, 0x80],
            &[5, 0, 1, 0, 7, 0, 0, 0],
            &[8, 0, 2, 0, 1, 2, 3, 4],
        ];
        assert_eq!(w.finish(), expected.concat());
    }

    #[test]
    fn overlong_text_is_cut_to_the_longest_attribute() {
        let mut w = Writer::default();
        w.text(1, &"x".repeat(100_000));
        let bytes = w.finish();
        let attr = Attrs::new(&bytes).next().unwrap().unwrap();
        assert_eq!(attr.bytes.len(), LONGEST);
    }

    #[test]
    fn invalid_lengths_are_reported_once() {
        for said in [0_u16, 1, 3, 9, u16::MAX] {
            let bytes = [said.to_ne_bytes(), [1, 0], [0, 0], [0, 0]].concat();
            let mut attrs = Attrs::new(&bytes);
            let error = DecodeError::Attribute { kind: 1, said: usize::from(said), have: 8 };
            assert_eq!(attrs.next(), Some(Err(error)));
            assert_eq!(attrs.next(), None);
        }
    }

    #[test]
    fn numbers_of_the_wrong_size_are_refused() {
        let attr = Attr { kind: 9, bytes: &[1, 2, 3] };
        assert_eq!(attr.be32(), Err(DecodeError::Size { kind: 9, have: 3, want: 4 }));
        assert_eq!(attr.be64(), Err(DecodeError::Size { kind: 9, have: 3, want: 8 }));
        assert!(matches!(Attr { kind: 1, bytes: b"a\xff" }.text(), Err(DecodeError::Text { .. })));
    }

    proptest! {
        #[test]
        fn attributes_round_trip(parts in prop::collection::vec(
            (1_u16..0x3fff, prop::collection::vec(any::<u8>(), 0..40)), 0..20,
        )) {
            let mut w = Writer::default();
            w.nest(5, |w| parts.iter().for_each(|(kind, bytes)| w.put(*kind, bytes)));
            let bytes = w.finish();
            let outer = Attrs::new(&bytes).next().unwrap().unwrap();
            let read: Vec<_> =
                outer.attrs().map(|attr| attr.map(|a| (a.kind, a.bytes.to_vec()))).collect();
            prop_assert_eq!(read, parts.into_iter().map(Ok).collect::<Vec<_>>());
        }

        #[test]
        fn reading_any_bytes_terminates(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Attrs::new(&bytes).count() <= bytes.len() / HEADER);
        }
    }
}
