//! Cuts a stream of bytes into lines. The length of a line is not limited here: the API server limits
//! the size of an object.

use bytes::{Buf, BytesMut};

/// Bytes that have arrived, and how far they were searched for an end of line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    searched: usize,
}

impl Lines {
    /// Adds what arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line that is not empty, without its end.
    pub(crate) fn next(&mut self) -> Option<BytesMut> {
        loop {
            let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + at);
            self.buffer.advance(1);
            self.searched = 0;
            if !line.is_empty() {
                return Some(line);
            }
        }
    }

    /// The bytes after the last newline. Call it after the last chunk.
    pub(crate) fn rest(&mut self) -> Option<BytesMut> {
        self.searched = 0;
        let rest = self.buffer.split();
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(text: &[u8], mut cuts: Vec<usize>) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        cuts.push(text.len());
        cuts.sort_unstable();
        let mut lines = Lines::default();
        let mut found = Vec::new();
        let mut from = 0;
        for cut in cuts {
            lines.push(&text[from..cut]);
            from = cut;
            found.extend(std::iter::from_fn(|| lines.next()).map(|line| line.to_vec()));
        }
        (found, lines.rest().map(|rest| rest.to_vec()))
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_affect_lines(
            text in "[ab\n\u{e9}]{0,40}",
            cuts in proptest::collection::vec(0usize..1000, 0..8),
        ) {
            let bytes = text.as_bytes();
            let cuts = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            let (lines, rest) = split(bytes, cuts);
            let (whole, tail) = text.rsplit_once('\n').unwrap_or(("", &text));
            let wanted: Vec<Vec<u8>> =
                whole.split('\n').filter(|l| !l.is_empty()).map(|l| l.into()).collect();
            prop_assert_eq!(lines, wanted);
            prop_assert_eq!(rest, (!tail.is_empty()).then(|| tail.into()));
        }
    }

    #[test]
    fn a_line_is_returned_after_its_newline() {
        let mut lines = Lines::default();
        lines.push(b"\n\nab");
        assert_eq!(lines.next(), None);
        lines.push(b"c\nd");
        assert_eq!(lines.next().as_deref(), Some(&b"abc"[..]));
        assert_eq!(lines.next(), None);
        assert_eq!(lines.rest().as_deref(), Some(&b"d"[..]));
        assert_eq!(lines.rest(), None);
    }
}
