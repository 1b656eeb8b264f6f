//! The registers of a rule: 16 of 32 bits, each either written in this rule or undefined.

use super::Fault;
use nearhop_netfilter::object::{Bytes, Reg};

const COUNT: usize = 16;

#[derive(Default)]
pub(super) struct Registers {
    words: [Option<[u8; 4]>; COUNT],
}

impl Registers {
    /// Writes bytes; the rest of the last register is set to zero, as in the kernel.
    pub(super) fn store(&mut self, to: Reg, bytes: &[u8]) -> Result<(), Fault> {
        for (at, chunk) in bytes.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            let place = self.words.get_mut(usize::from(to.0) + at);
            *place.ok_or(Fault::NoSuchRegister { first: to, len: bytes.len() })? = Some(word);
        }
        Ok(())
    }

    /// Reads bytes that were written before.
    pub(super) fn load(&self, from: Reg, len: usize) -> Result<Vec<u8>, Fault> {
        let first = usize::from(from.0);
        let words = self.words.get(first..first + len.div_ceil(4));
        let words = words.ok_or(Fault::NoSuchRegister { first: from, len })?;
        let mut bytes = Vec::with_capacity(words.len() * 4);
        for (at, word) in words.iter().enumerate() {
            let undefined = Fault::Undefined { register: Reg(from.0 + at as u8) };
            bytes.extend(word.ok_or(undefined)?);
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    pub(super) fn load_u32(&self, from: Reg) -> Result<u32, Fault> {
        let bytes = self.load(from, 4)?;
        Ok(u32::from_ne_bytes(bytes.try_into().expect("four were read")))
    }

    /// Reads a key or data of a set.
    pub(super) fn load_bytes(&self, from: Reg, len: usize) -> Result<Bytes, Fault> {
        let bytes = self.load(from, len)?;
        Bytes::from_slice(&bytes).ok_or(Fault::NoSuchRegister { first: from, len })
    }
}
