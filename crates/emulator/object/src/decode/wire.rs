//! The protobuf wire format: numbered fields, without their meaning.
//!
//! It rejects groups, which Kubernetes does not use. It never panics and never allocates.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wire<'a> {
    /// An integer or a boolean.
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// Text, bytes, a message, or a packed list.
    Bytes(&'a [u8]),
}

/// The fields of a message, in the order of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn field(&mut self) -> Result<(u32, Wire<'a>), String> {
        let tag = varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number != 0);
        let number =
            number.ok_or_else(|| format!("proto: illegal tag {} (wire type {tag})", tag >> 3))?;
        let value = match tag & 7 {
            0 => Wire::Varint(varint(&mut self.rest)?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = varint(&mut self.rest)?;
                let length = usize::try_from(length).map_err(|_| truncated())?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(truncated)?;
                self.rest = rest;
                Wire::Bytes(bytes)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(format!("proto: illegal wireType {other}")),
        };
        Ok((number, value))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*head)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Reads one variable-length integer from the front.
pub(super) fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first().ok_or_else(truncated)?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("proto: integer overflow".to_owned())
}

fn truncated() -> String {
    "unexpected EOF".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_parsed_and_invalid_bytes_rejected() {
        let fields: Result<Vec<_>, _> =
            Fields::new(&[0x08, 0x96, 0x01, 0x12, 0x01, b'x', 0x1d, 1, 0, 0, 0]).collect();
        assert_eq!(
            fields,
            Ok(vec![(1, Wire::Varint(150)), (2, Wire::Bytes(b"x")), (3, Wire::Fixed32(1))])
        );
        for (bytes, problem) in [
            (&[0x08][..], "unexpected EOF"),
            (&[0x12, 0x05, b'x'], "unexpected EOF"),
            (&[0x0b], "proto: illegal wireType 3"),
            (&[0x00, 0x00], "proto: illegal tag 0 (wire type 0)"),
            (
                &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                "proto: integer overflow",
            ),
        ] {
            let fields: Result<Vec<_>, _> = Fields::new(bytes).collect();
            assert_eq!(fields, Err(problem.to_owned()));
        }
    }
}
