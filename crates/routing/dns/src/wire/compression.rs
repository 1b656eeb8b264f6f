//! Name compression (RFC 1035, section 4.1.4): offsets of the names in a message.

/// Compression pointers have 14 bits.
const REACH: usize = 0x4000;
/// Upper bound of the labels of a name.
const MAX_LABELS: usize = 128;
/// Initial size of the table.
const SMALLEST: usize = 64;

/// Hash table (open addressing) of name suffixes.
#[derive(Clone, Debug, Default)]
pub(super) struct CompressionTable {
    /// Hash and offset of a suffix; offset 0, which is the header, marks a free slot.
    slots: Vec<(u32, u16)>,
    used: usize,
}

impl CompressionTable {
    pub(super) fn clear(&mut self) {
        if self.used > 0 {
            self.slots.clear();
            self.used = 0;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds all suffixes of a name written at `at`.
    pub(super) fn add(&mut self, name: &[u8], at: usize) {
        self.add_until(name, name.len(), at);
    }

    /// Finds the longest suffix that the message already has: its start in the name, and its offset
    /// in the message.
    pub(super) fn find(&self, message: &[u8], name: &[u8]) -> Option<(usize, u16)> {
        let mut labels = Labels::of(name);
        while let Some((start, hash)) = labels.next() {
            if let Some(at) = self.lookup(message, hash, &name[start..]) {
                return Some((start, at));
            }
        }
        None
    }

    /// Adds the suffixes that start before `end`, where the name continues as a pointer.
    pub(super) fn add_until(&mut self, name: &[u8], end: usize, at: usize) {
        let mut labels = Labels::of(name);
        while let Some((start, hash)) = labels.next() {
            if start >= end {
                break;
            }
            self.insert(hash, at + start);
        }
    }

    fn lookup(&self, message: &[u8], hash: u32, name: &[u8]) -> Option<u16> {
        if self.slots.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                (_, 0) => return None,
                (known, at) if known == hash && matches_at(message, at.into(), name) => {
                    return Some(at);
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    fn insert(&mut self, hash: u32, at: usize) {
        if at >= REACH {
            return;
        }
        if self.used * 2 >= self.slots.len() {
            self.grow();
        }
        self.put(hash, at as u16);
        self.used += 1;
    }

    fn put(&mut self, hash: u32, at: u16) {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot].1 != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = (hash, at);
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(SMALLEST);
        let before = std::mem::replace(&mut self.slots, vec![(0, 0); size]);
        for (hash, at) in before {
            if at != 0 {
                self.put(hash, at);
            }
        }
    }
}

/// Whether the message has this name at this offset, in the same case.
fn matches_at(message: &[u8], at: usize, name: &[u8]) -> bool {
    let (mut at, mut rest) = (at, name);
    loop {
        let Some(length) = message.get(at).copied() else { return false };
        if length >= 0xc0 {
            let Some(low) = message.get(at + 1) else { return false };
            // This writer's pointers only point backwards.
            at = usize::from(length & 0x3f) << 8 | usize::from(*low);
            continue;
        }
        if length == 0 {
            return rest.is_empty();
        }
        let whole = usize::from(length) + 1;
        if rest.len() < whole || message.get(at..at + whole) != Some(&rest[..whole]) {
            return false;
        }
        at += whole;
        rest = &rest[whole..];
    }
}

/// The suffixes of a name, longest first: start and hash.
struct Labels {
    found: [(u8, u32); MAX_LABELS],
    at: usize,
    count: usize,
}

impl Labels {
    fn of(name: &[u8]) -> Self {
        let mut labels = Self { found: [(0, 0); MAX_LABELS], at: 0, count: 0 };
        let mut start = 0;
        while start < name.len() && labels.count < MAX_LABELS {
            labels.found[labels.count].0 = start as u8;
            labels.count += 1;
            start += 1 + usize::from(name[start]);
        }
        // From the right, so that each octet is hashed once.
        let (mut hash, mut end) = (0x811c_9dc5_u32, name.len());
        for (start, known) in labels.found[..labels.count].iter_mut().rev() {
            for octet in &name[usize::from(*start)..end] {
                hash = (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193);
            }
            *known = hash;
            end = usize::from(*start);
        }
        labels
    }

    fn next(&mut self) -> Option<(usize, u32)> {
        let (start, hash) = *self.found[..self.count].get(self.at)?;
        self.at += 1;
        Some((start.into(), hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &[u8] = b"\x03web\x07default\x03svc";
    const DB: &[u8] = b"\x02db\x07default\x03svc";

    #[test]
    fn longest_suffix_is_found() {
        let mut message = vec![0; 12];
        message.extend(WEB);
        message.push(0);
        let mut names = CompressionTable::default();
        assert_eq!(names.find(&message, WEB), None);
        names.add(WEB, 12);
        assert_eq!(names.find(&message, WEB), Some((0, 12)));
        assert_eq!(names.find(&message, DB), Some((3, 16)));
        assert_eq!(names.find(&message, b"\x03SVC"), None, "lookups are case-sensitive");
        assert_eq!(names.find(&message, b""), None);
        // A name written with a pointer is found through the pointer.
        let at = message.len();
        message.extend(&DB[..3]);
        message.extend([0xc0, 16]);
        names.add_until(DB, 3, at);
        assert_eq!(names.find(&message, DB), Some((0, at as u16)));
        names.clear();
        assert_eq!(names.find(&message, DB), None);
    }

    #[test]
    fn table_grows() {
        let mut message = vec![0; 12];
        let mut names = CompressionTable::default();
        let name = |i: u16| [&[4], format!("{i:04}").as_bytes()].concat();
        for i in 0..1000 {
            names.add(&name(i), message.len());
            message.extend(name(i));
            message.push(0);
        }
        for i in 0..1000 {
            assert_eq!(names.find(&message, &name(i)), Some((0, 12 + 6 * i)));
        }
    }
}
