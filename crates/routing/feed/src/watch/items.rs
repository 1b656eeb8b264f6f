//! Cuts the body of a list into its items while it arrives, so that no page is held as a whole. The
//! rest is the list's own metadata.
//!
//! Only brackets and quotes are read here, so that an unreadable item does not affect the others. The
//! decoder checks whether the parts are JSON.

use std::ops::Range;

use bytes::{Buf, BytesMut};

/// A list that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Items {
    buffer: BytesMut,
    /// The number of scanned bytes of the buffer.
    at: usize,
    place: Place,
    text: Text,
    /// Open brackets, around the list's members or within the item.
    depth: usize,
    /// Everything but the items.
    envelope: Vec<u8>,
    /// Where in the envelope the last string is, with its quotes.
    last: Range<usize>,
}

/// Where the next byte belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Envelope,
    Between,
    Item,
}

/// Whether the next byte is part of a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    Escaped,
}

impl Items {
    /// Adds what arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole item.
    pub(crate) fn next(&mut self) -> Option<BytesMut> {
        while let Some(byte) = self.buffer.get(self.at).copied() {
            if self.text != Text::Outside {
                self.pass_text(byte);
                continue;
            }
            match self.place {
                Place::Envelope => self.pass_envelope(byte),
                Place::Between => self.pass_between(byte),
                Place::Item if self.depth == 0 && matches!(byte, b',' | b']') => {
                    self.place = Place::Between;
                    return Some(self.buffer.split_to(std::mem::take(&mut self.at)));
                }
                Place::Item => self.pass(byte),
            }
        }
        if self.place == Place::Envelope {
            self.keep();
        }
        None
    }

    /// The list without its items. Call it after the last chunk.
    pub(crate) fn into_envelope(self) -> Vec<u8> {
        self.envelope
    }

    fn pass_text(&mut self, byte: u8) {
        if self.text == Text::Escaped {
            self.text = Text::Inside;
            self.at += 1;
            return;
        }
        match byte {
            b'"' => {
                self.text = Text::Outside;
                self.at += 1;
                self.last.end = self.envelope.len() + self.at;
            }
            b'\\' => {
                self.text = Text::Escaped;
                self.at += 1;
            }
            _ => {
                let ahead = &self.buffer[self.at..];
                self.at += memchr::memchr2(b'"', b'\\', ahead).unwrap_or(ahead.len());
            }
        }
    }

    fn pass(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text = Text::Inside;
                self.last.start = self.envelope.len() + self.at;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.at += 1;
    }

    fn pass_envelope(&mut self, byte: u8) {
        self.pass(byte);
        // An array at the second level is a member's value, and the string before it the name.
        if byte == b'[' && self.depth == 2 {
            self.keep();
            if self.envelope.get(self.last.clone()) == Some(&b"\"items\""[..]) {
                self.place = Place::Between;
            }
        }
    }

    fn pass_between(&mut self, byte: u8) {
        match byte {
            b',' | b' ' | b'\n' | b'\r' | b'\t' => self.buffer.advance(1),
            b']' => {
                self.place = Place::Envelope;
                // The members' own depth, which items have counted away, and this array.
                self.depth = 2;
            }
            _ => {
                self.place = Place::Item;
                self.depth = 0;
            }
        }
    }

    /// Moves the scanned bytes to the envelope.
    fn keep(&mut self) {
        self.envelope.extend_from_slice(&self.buffer[..self.at]);
        self.buffer.advance(std::mem::take(&mut self.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8], step: usize) -> (Vec<String>, String) {
        let mut items = Items::default();
        let mut found = Vec::new();
        for chunk in text.chunks(step) {
            items.push(chunk);
            found.extend(std::iter::from_fn(|| items.next()));
        }
        let found =
            found.iter().map(|item| String::from_utf8_lossy(item).trim().to_owned()).collect();
        (found, String::from_utf8(items.into_envelope()).unwrap())
    }

    #[track_caller]
    fn check(text: &str, items: &[&str], envelope: &str) {
        for step in 1..=text.len() {
            assert_eq!(
                cut(text.as_bytes(), step),
                (items.iter().map(|item| (*item).to_owned()).collect(), envelope.to_owned()),
                "in chunks of {step} bytes"
            );
        }
    }

    #[test]
    fn items_are_found_across_chunk_boundaries() {
        check(
            r#"{"kind":"L","metadata":{"a":["items",[1]]},"items":[{"a":[1,"]"]}, {"b":"\"}]"},null]}"#,
            &[r#"{"a":[1,"]"]}"#, r#"{"b":"\"}]"}"#, "null"],
            r#"{"kind":"L","metadata":{"a":["items",[1]]},"items":[]}"#,
        );
    }

    #[test]
    fn metadata_after_items_and_missing_items_are_accepted() {
        check(
            "{ \"items\" : [\n {} ,\n{}\n] , \"metadata\":{\"x\":\"\\\\\"}}",
            &["{}", "{}"],
            "{ \"items\" : [] , \"metadata\":{\"x\":\"\\\\\"}}",
        );
        check(r#"{"items":[],"kind":"items"}"#, &[], r#"{"items":[],"kind":"items"}"#);
        check(r#"{"items":null,"x":[1]}"#, &[], r#"{"items":null,"x":[1]}"#);
    }

    #[test]
    fn an_item_with_invalid_utf_8_does_not_affect_others() {
        let (items, envelope) = cut(b"{\"items\":[{\"a\":\"\xff\"},{}]}", 3);
        assert_eq!(items.len(), 2);
        assert_eq!(envelope, "{\"items\":[]}");
    }
}
