//! A DNS question: the name as the client wrote it, and the type.

use std::fmt;

/// Maximum length of a name in wire format, including the label lengths and the root.
pub const LONGEST_NAME: usize = 255;

/// Maximum number of labels in a name.
const MOST_LABELS: usize = 127;

/// A name: its labels as the client wrote them, and in lower case for comparison.
#[derive(Clone)]
pub struct AskedName {
    /// The wire format: lengths and labels, without the root.
    spelled: [u8; LONGEST_NAME],
    lower: [u8; LONGEST_NAME],
    length: u8,
    /// The offset of each label's length octet.
    starts: [u8; MOST_LABELS],
    labels: u8,
}

/// Why bytes are not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A label is empty or longer than 63 octets.
    #[error("a label has no octets or more than 63")]
    Label,
    /// The name is longer than 255 octets.
    #[error("the name has more than 255 octets")]
    Length,
}

impl AskedName {
    /// The root: a name without labels.
    pub fn root() -> Self {
        Self {
            spelled: [0; LONGEST_NAME],
            lower: [0; LONGEST_NAME],
            length: 0,
            starts: [0; MOST_LABELS],
            labels: 0,
        }
    }

    /// Adds a label on the right, in the order of the wire format.
    pub fn push(&mut self, label: &[u8]) -> Result<(), NameError> {
        if label.is_empty() || label.len() > 63 {
            return Err(NameError::Label);
        }
        let start = usize::from(self.length);
        let end = start + 1 + label.len();
        // The root takes one more octet.
        if end + 1 > LONGEST_NAME {
            return Err(NameError::Length);
        }
        self.starts[usize::from(self.labels)] = self.length;
        self.spelled[start] = label.len() as u8;
        self.lower[start] = label.len() as u8;
        self.spelled[start + 1..end].copy_from_slice(label);
        self.lower[start + 1..end].copy_from_slice(label);
        self.lower[start + 1..end].make_ascii_lowercase();
        self.length = end as u8;
        self.labels += 1;
        Ok(())
    }

    /// Parses `a.b.c` or `a.b.c.`, without escapes.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let mut name = Self::root();
        let text = text.strip_suffix('.').unwrap_or(text);
        if !text.is_empty() {
            text.split('.').try_for_each(|label| name.push(label.as_bytes()))?;
        }
        Ok(name)
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.labels.into()
    }

    /// Whether it is the root.
    pub fn is_empty(&self) -> bool {
        self.labels == 0
    }

    /// A label in lower case, counted from the left.
    pub fn label(&self, at: usize) -> &[u8] {
        let start = usize::from(self.starts[at]);
        let length = usize::from(self.lower[start]);
        &self.lower[start + 1..start + 1 + length]
    }

    /// A label in lower case, if it is valid UTF-8; all names in Kubernetes are.
    pub fn text(&self, at: usize) -> Option<&str> {
        std::str::from_utf8(self.label(at)).ok()
    }

    /// The octets from a label on, as the client wrote them, without the root.
    pub fn spelled_from(&self, at: usize) -> &[u8] {
        &self.spelled[self.offset_of(at)..usize::from(self.length)]
    }

    /// The number of octets before a label; all octets for the root.
    pub fn offset_of(&self, at: usize) -> usize {
        if at >= self.len() { self.length.into() } else { self.starts[at].into() }
    }

    /// If this name equals `other` or is below it, the number of additional labels.
    pub fn below(&self, other: &Self) -> Option<usize> {
        let more = self.len().checked_sub(other.len())?;
        let tail = &self.lower[self.offset_of(more)..usize::from(self.length)];
        (tail == &other.lower[..usize::from(other.length)]).then_some(more)
    }
}

impl PartialEq for AskedName {
    /// Names are compared without case.
    fn eq(&self, other: &Self) -> bool {
        self.lower[..usize::from(self.length)] == other.lower[..usize::from(other.length)]
    }
}

impl Eq for AskedName {}

impl fmt::Display for AskedName {
    /// The name as the client wrote it, with a final dot; octets that are not graphic ASCII become
    /// `\ddd`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.spelled_from(0);
        if rest.is_empty() {
            return f.write_str(".");
        }
        while let [length, tail @ ..] = rest {
            let (label, next) = tail.split_at(usize::from(*length));
            for octet in label {
                match octet {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(*octet))?,
                    octet if octet.is_ascii_graphic() => write!(f, "{}", char::from(*octet))?,
                    octet => write!(f, "\\{octet:03}")?,
                }
            }
            f.write_str(".")?;
            rest = next;
        }
        Ok(())
    }
}

impl fmt::Debug for AskedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The record type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Ports and target names.
    Srv,
    /// Names of an address.
    Ptr,
    /// The target of an alias.
    Cname,
    /// Texts.
    Txt,
    /// Start of authority of the zone.
    Soa,
    /// Name servers of the zone.
    Ns,
    /// A zone transfer (AXFR, IXFR).
    Transfer,
    /// All other types; there are no records of them.
    Other,
}

impl RecordType {
    /// The type for a number in wire format.
    pub fn from_wire(number: u16) -> Self {
        match number {
            1 => Self::A,
            2 => Self::Ns,
            5 => Self::Cname,
            6 => Self::Soa,
            12 => Self::Ptr,
            16 => Self::Txt,
            28 => Self::Aaaa,
            33 => Self::Srv,
            251 | 252 => Self::Transfer,
            _ => Self::Other,
        }
    }
}

/// A question of class IN.
#[derive(Clone, Debug)]
pub struct Question {
    /// The name.
    pub name: AskedName,
    /// The type.
    pub record_type: RecordType,
}
