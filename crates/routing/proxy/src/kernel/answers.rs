//! Decodes the kernel's answers to a batch and assigns them to its changes.

use nearhop_netfilter::object::Batch;
use nearhop_netfilter::wire::{Encoded, Reply, messages};
use nix::errno::Errno;

use super::error::{KernelError, Refusal, describe};

/// Whether all answers of a batch have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting,
    Finished,
}

/// Reads the answers to a batch from a datagram; ignores answers to earlier messages.
pub(super) fn read_answers(
    bytes: &[u8],
    batch: &Batch,
    encoded: &Encoded,
    refusals: &mut Vec<Refusal>,
) -> Result<Progress, KernelError> {
    for message in messages(bytes) {
        let message = message?;
        let answer = match message.reply()? {
            Reply::Answer(answer) => answer,
            Reply::Overrun => return Err(KernelError::Unknown { errno: Errno::ENOBUFS }),
            Reply::Object | Reply::Done | Reply::Other => continue,
        };
        let errno = Errno::from_raw(answer.errno);
        if message.seq == encoded.first_seq {
            return Err(refused_as_a_whole(errno));
        }
        let Some(op) = encoded.op_of(message.seq) else { continue };
        if answer.errno != 0 {
            let part = encoded.refused_part(message.seq, answer.offset);
            let what = describe(&batch.ops[op]);
            refusals.push(Refusal { op, errno, message: answer.message, part, what });
        }
        if message.seq == encoded.ack_seq {
            return Ok(Progress::Finished);
        }
    }
    Ok(Progress::Waiting)
}

/// Maps an error that is not about a single change.
pub(super) fn refused_as_a_whole(errno: Errno) -> KernelError {
    match errno {
        Errno::EPERM => KernelError::NotAllowed,
        Errno::EOPNOTSUPP => KernelError::NoNftables,
        Errno::EBUSY | Errno::EAGAIN | Errno::EINTR => KernelError::Busy { errno },
        errno => KernelError::Failed { errno },
    }
}

#[cfg(test)]
mod tests {
    use nearhop_core::Family;
    use nearhop_netfilter::object::{Op, Table};
    use nearhop_netfilter::wire::encode_batch;

    use super::*;

    fn answer(seq: u32, errno: Errno) -> Vec<u8> {
        let mut bytes = 36_u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&2_u16.to_ne_bytes());
        bytes.extend_from_slice(&0x100_u16.to_ne_bytes());
        bytes.extend_from_slice(&seq.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(-(errno as i32)).to_ne_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes
    }

    const FINE: Errno = Errno::UnknownErrno;

    /// Reads answers to a batch of two changes, sent as messages 10 to 13.
    fn read(answers: &[(u32, Errno)]) -> Result<(Progress, Vec<(usize, Errno)>), KernelError> {
        let table = Table { family: Family::Ipv4, name: "t".into() };
        let ops = vec![Op::FlushChain("a".into()), Op::DeleteChain("a".into())];
        let batch = Batch { table, ops };
        let encoded = encode_batch(&batch, 10);
        let bytes: Vec<u8> = answers.iter().flat_map(|(seq, errno)| answer(*seq, *errno)).collect();
        let mut refusals = Vec::new();
        let progress = read_answers(&bytes, &batch, &encoded, &mut refusals)?;
        Ok((progress, refusals.into_iter().map(|found| (found.op, found.errno)).collect()))
    }

    #[test]
    fn the_reply_to_the_last_message_finishes_the_batch() {
        assert_eq!(read(&[(12, FINE)]), Ok((Progress::Finished, Vec::new())));
        assert_eq!(read(&[]), Ok((Progress::Waiting, Vec::new())));
    }

    #[test]
    fn every_refusal_is_collected() {
        let both = [(11, Errno::ENOENT), (12, Errno::EBUSY)];
        let expected = vec![(0, Errno::ENOENT), (1, Errno::EBUSY)];
        assert_eq!(read(&both), Ok((Progress::Finished, expected)));
        let first = [(11, Errno::ENOENT)];
        assert_eq!(read(&first), Ok((Progress::Waiting, vec![(0, Errno::ENOENT)])));
    }

    #[test]
    fn replies_to_other_batches_are_ignored() {
        let answers = [(9, Errno::EPERM), (13, Errno::EPERM), (4_000_000, FINE), (12, FINE)];
        assert_eq!(read(&answers), Ok((Progress::Finished, Vec::new())));
    }

    #[test]
    fn a_reply_to_the_first_message_fails_the_batch() {
        let whole = |errno| read(&[(10, errno), (12, FINE)]).unwrap_err();
        assert_eq!(whole(Errno::EPERM), KernelError::NotAllowed);
        assert_eq!(whole(Errno::EOPNOTSUPP), KernelError::NoNftables);
        assert_eq!(whole(Errno::EBUSY), KernelError::Busy { errno: Errno::EBUSY });
        assert_eq!(whole(Errno::EAGAIN), KernelError::Busy { errno: Errno::EAGAIN });
        assert_eq!(whole(Errno::ENOMEM), KernelError::Failed { errno: Errno::ENOMEM });
        assert!(KernelError::NotAllowed.to_string().contains("CAP_NET_ADMIN"));
    }
}
