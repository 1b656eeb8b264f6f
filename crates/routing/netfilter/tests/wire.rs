//! Encoded bytes compared with those of nft, and decoded lists compared with what was sent.
//!
//! The expected bytes are little-endian.
#![cfg(target_endian = "little")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::Ipv4Addr;

use nearhop_core::Family;
use nearhop_netfilter::object::*;
use nearhop_netfilter::wire::{
    Answer, DecodeError, DumpedElement, Encoded, Names, RefusedPart, Reply, Request, decode_chain,
    decode_elements, decode_rule, decode_set, decode_table, encode_batch, encode_check,
    encode_request, messages,
};
use proptest::prelude::*;

fn table() -> Table {
    Table { family: Family::Ipv4, name: "nearhop".into() }
}

fn batch(ops: Vec<Op>) -> Batch {
    Batch { table: table(), ops }
}

fn encode(ops: Vec<Op>) -> Encoded {
    encode_batch(&batch(ops), 1)
}

/// Bytes of the single message of a batch, without its header.
fn only_message(encoded: &Encoded) -> String {
    let bytes = &encoded.bytes[20 + 16..encoded.bytes.len() - 20];
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

fn chain(name: &str, rules: Vec<Rule>) -> Op {
    Op::AddChain(Chain { name: name.into(), hook: None, rules, comment: None })
}

fn element(number: u32) -> Element {
    let address = Ipv4Addr::from(0x0a00_0000 + number / 10);
    let key = Bytes::EMPTY.address(address.into()).protocol(6).port(80).slot(number % 10);
    let data = Data::Value(Bytes::EMPTY.address(address.into()).port(8080));
    Element { key, end: None, data, comment: None }
}

fn add(elements: Vec<Element>) -> Op {
    Op::AddElements { set: "endpoints".into(), elements }
}

/// The family `ip` and the name of the table.
const TABLE: &str = "020000000c0001006e656172686f7000";

#[test]
fn a_batch_begins_and_ends_with_nfnetlink_messages() {
    let encoded = encode_batch(&batch(vec![Op::DeleteTable]), 7);
    let begin = [20, 0, 0, 0, 16, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
    assert_eq!(encoded.bytes[..20], begin);
    let end = [20, 0, 0, 0, 17, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
    assert_eq!(encoded.bytes[encoded.bytes.len() - 20..], end);
    assert_eq!((encoded.ack_seq, encoded.next_seq()), (8, 10));
    // A check batch has no end message.
    let check = encode_check(&batch(vec![Op::DeleteTable]), 7);
    assert_eq!(check.bytes.len(), encoded.bytes.len() - 20);
}

#[test]
fn a_set_element_is_encoded_like_nft() {
    let key = Bytes::EMPTY.address(Ipv4Addr::new(10, 0, 0, 1).into()).protocol(6).port(80);
    let data = Data::Verdict(Verdict::Goto("pick-2".into()));
    let elements = vec![Element { key, end: None, data, comment: Some("ns/svc:p".into()) }];
    let encoded = encode(vec![Op::AddElements { set: "services".into(), elements }]);
    let expected = [
        TABLE,
        "0d0002007365727669636573 00000000",
        "4800 0380 4400 0180",
        "1400 0180 1000 0100 0a0000010600000000500000",
        "1c00 0280 1800 0280 0800 0100 fffffffc 0b00 0200 7069636b2d320000",
        "0f00 0600 00096e732f7376633a700000",
    ];
    assert_eq!(only_message(&encoded), expected.concat().replace(' ', ""));
}

#[test]
fn the_deletion_of_a_range_has_both_keys_and_no_comment() {
    let key = Bytes::EMPTY.port(80).address(Ipv4Addr::new(10, 1, 0, 0).into());
    let end = Bytes::EMPTY.port(80).address(Ipv4Addr::new(10, 1, 255, 255).into());
    let comment = Some("omitted in a deletion".into());
    let elements = vec![Element { key, end: Some(Box::new(end)), data: Data::None, comment }];
    let encoded = encode(vec![Op::DeleteElements { set: "x".into(), elements }]);
    let expected = [
        TABLE,
        "06000200 78000000",
        "2800 0380 2400 0180",
        "1000 0180 0c00 0100 00500000 0a010000",
        "1000 0a80 0c00 0100 00500000 0a01ffff",
    ];
    assert_eq!(only_message(&encoded), expected.concat().replace(' ', ""));
}

/// The encoded expressions of a rule.
fn exprs_of(exprs: Vec<Expr>) -> String {
    let encoded = encode(vec![chain("c", vec![rule(exprs)])]);
    let all = only_message(&encoded);
    let at = all.find("06000200630000").unwrap() + "0600020063000000".len();
    // Skip the header of the list.
    all[at + 8..].to_owned()
}

#[test]
fn expressions_are_encoded_like_nft() {
    let lookup = |then| Expr::Lookup { set: "s".into(), from: Reg(0), then };
    let cases = [
        (
            Expr::Payload { base: Base::Network, offset: 16, len: 4, to: Reg(0) },
            "3400 0180 0c00 0100 7061796c6f616400 2400 0280 \
             0800 0100 00000001 0800 0200 00000001 0800 0300 00000010 0800 0400 00000004",
        ),
        (
            Expr::Random { modulus: 2, offset: 0, to: Reg(3) },
            "3400 0180 0b00 0100 6e756d67656e0000 2400 0280 \
             0800 0100 0000000b 0800 0200 00000002 0800 0300 00000001 0800 0400 00000000",
        ),
        (
            Expr::Random { modulus: 5, offset: 3, to: Reg(3) },
            "3400 0180 0b00 0100 6e756d67656e0000 2400 0280 \
             0800 0100 0000000b 0800 0200 00000005 0800 0300 00000001 0800 0400 00000003",
        ),
        (
            // `numgen random mod 1000000000 < 400000000`.
            Expr::Chance { part: 400_000_000, whole: 1_000_000_000 },
            "3400 0180 0b00 0100 6e756d67656e0000 2400 0280 \
             0800 0100 00000001 0800 0200 3b9aca00 0800 0300 00000001 0800 0400 00000000 \
             4000 0180 0e00 0100 627974656f72646572000000 2c00 0280 \
             0800 0100 00000001 0800 0200 00000001 0800 0300 00000001 0800 0400 00000004 \
             0800 0500 00000004 \
             2c00 0180 0800 0100 636d7000 2000 0280 \
             0800 0100 00000001 0800 0200 00000002 0c00 0380 0800 0100 17d78400",
        ),
        (
            lookup(Hit::Mismatch),
            "2c00 0180 0b00 0100 6c6f6f6b75700000 1c00 0280 \
             0800 0200 00000001 0600 0100 73000000 0800 0500 00000001",
        ),
        (
            lookup(Hit::Verdict),
            "2c00 0180 0b00 0100 6c6f6f6b75700000 1c00 0280 \
             0800 0200 00000001 0800 0300 00000000 0600 0100 73000000",
        ),
        (
            Expr::Dnat { family: Family::Ipv4, address: Reg(0), port: Reg(1) },
            "3000 0180 0800 0100 6e617400 2400 0280 \
             0800 0100 00000001 0800 0200 00000002 0800 0300 00000001 0800 0500 00000009",
        ),
        (
            Expr::Ct { key: CtKey::ReplySource, to: Reg(4) },
            "2800 0180 0700 0100 63740000 1c00 0280 \
             0800 0200 00000013 0800 0100 00000002 0500 0300 01000000",
        ),
        (Expr::Masquerade, "1c00 0180 0900 0100 6d61737100000000 0c00 0280 0800 0100 00000010"),
        (
            Expr::Reject(Family::Ipv6),
            "2400 0180 0b00 0100 72656a6563740000 1400 0280 \
             0800 0100 00000000 0500 0200 04000000",
        ),
        (
            Expr::Verdict(Verdict::Drop),
            "3000 0180 0e00 0100 696d6d656469617465000000 1c00 0280 \
             0800 0100 00000000 1000 0280 0c00 0280 0800 0100 00000000",
        ),
    ];
    for (expr, expected) in cases {
        let what = format!("{expr:?}");
        assert_eq!(exprs_of(vec![expr]), expected.replace(' ', ""), "{what}");
    }
}

#[test]
fn conntrack_address_keys_depend_on_the_table_family() {
    let table = Table { family: Family::Ipv6, name: "nearhop".into() };
    let expr = Expr::Ct { key: CtKey::OriginalDestination, to: Reg(0) };
    let ops = vec![chain("c", vec![rule(vec![expr])])];
    let bytes = encode_batch(&Batch { table, ops }, 1).bytes;
    // NFT_CT_DST_IP6.
    let wanted = [8, 0, 2, 0, 0, 0, 0, 22];
    assert!(bytes.windows(wanted.len()).any(|window| window == wanted));
}

#[test]
fn messages_are_numbered_and_the_last_requests_an_ack() {
    let ops = vec![
        Op::AddTable { comment: "c".into() },
        chain("a", vec![rule(vec![Expr::Masquerade]), rule(vec![Expr::Masquerade])]),
        add(Vec::new()),
        add((0..2000).map(element).collect()),
        Op::DeleteChain("a".into()),
    ];
    let encoded = encode_batch(&batch(ops), u32::MAX - 2);
    let ops: Vec<_> = (0..20).map(|n| encoded.op_of((u32::MAX - 2).wrapping_add(n))).collect();
    let expected: Vec<_> = [0, 1, 1, 1, 3, 3, 3, 4].map(Some).into();
    assert_eq!(ops[0], None);
    assert_eq!(ops[1..9], expected);
    assert!(ops[9..].iter().all(Option::is_none));
    assert_eq!(encoded.ack_seq, 5);
    assert_eq!(encoded.next_seq(), 7);
    let flags: Vec<u16> = headers(&encoded.bytes).into_iter().map(|(_, flags)| flags).collect();
    let acks: Vec<bool> = flags.iter().map(|flags| flags & 4 != 0).collect();
    assert_eq!(acks.iter().filter(|ack| **ack).count(), 1);
    assert!(acks[8], "the last message before the end of the batch");
}

/// Lengths and flags of all messages.
fn headers(mut bytes: &[u8]) -> Vec<(usize, u16)> {
    let mut found = Vec::new();
    while let Some(head) = bytes.first_chunk::<16>() {
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        found.push((len, u16::from_ne_bytes([head[6], head[7]])));
        bytes = &bytes[len..];
    }
    found
}

#[test]
fn a_batch_without_changes_is_empty() {
    assert!(encode(vec![add(Vec::new())]).is_empty());
    assert!(!encode(vec![Op::DeleteTable]).is_empty());
}

#[test]
fn messages_stay_below_64_kib_with_long_elements() {
    let long = |number| {
        let key = Bytes::from_slice(&[7; 40]).unwrap();
        let data = Data::Verdict(Verdict::Goto("c".repeat(500).into()));
        let comment = Some(format!("{number} {}", "c".repeat(500)).into());
        Element { key, end: Some(Box::new(key)), data, comment }
    };
    let encoded = encode(vec![add((0..1000).map(long).collect())]);
    let longest = headers(&encoded.bytes).into_iter().map(|(len, _)| len).max().unwrap();
    assert!(longest < 64 * 1024, "{longest}");
    assert_eq!(decoded(&encoded.bytes).len(), 1000);
}

#[test]
fn an_error_offset_maps_to_its_expression_or_element() {
    let exprs = vec![Expr::Masquerade, Expr::Random { modulus: 2, offset: 0, to: Reg(0) }];
    let ops = vec![
        chain("c", vec![rule(Vec::new()), rule(exprs)]),
        add((0..1000).map(element).collect()),
    ];
    let encoded = encode(ops);
    // After the headers, the table, the chain, the list header and `masq`.
    let second = 16 + 4 + 12 + 8 + 4 + 28;
    let named = |name: &str| Some(RefusedPart::Expression { rule: 1, name: name.into() });
    assert_eq!(encoded.refused_part(4, Some(second - 28)), named("masq"));
    assert_eq!(encoded.refused_part(4, Some(second)), named("numgen"));
    assert_eq!(encoded.refused_part(4, Some(second + 12)), named("numgen"));
    assert_eq!(encoded.refused_part(4, None), Some(RefusedPart::Rule(1)));
    assert_eq!(encoded.refused_part(4, Some(20)), Some(RefusedPart::Rule(1)));
    assert_eq!(encoded.refused_part(2, Some(40)), None);
    // The first message contains 900 elements.
    let third = 16 + 4 + 12 + 16 + 4 + 3 * 44;
    assert_eq!(encoded.refused_part(5, Some(third)), Some(RefusedPart::Element(3)));
    assert_eq!(encoded.refused_part(6, Some(third)), Some(RefusedPart::Element(903)));
    assert_eq!(encoded.refused_part(6, Some(1_000_000)), None);
    assert_eq!(encoded.refused_part(99, Some(third)), None);
}

fn decoded(bytes: &[u8]) -> Vec<DumpedElement> {
    let (mut names, mut found) = (Names::default(), Vec::new());
    for message in messages(bytes) {
        decode_elements(&message.unwrap(), &mut names, &mut found).unwrap();
    }
    found
}

fn answer(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((16 + payload.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&5_u32.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

fn reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    messages(bytes).next().unwrap().unwrap().reply()
}

#[test]
fn replies_contain_errno_message_and_offset() {
    let attrs = [9, 0, 1, 0, b'g', b'o', b'n', b'e', 0, 0, 0, 0, 8, 0, 2, 0, 44, 0, 0, 0];
    let errno = (-2_i32).to_ne_bytes();
    let original = answer(0x0a0c, 1, &[1, 2, 3, 4, 5]);
    let full = Reply::Answer(Answer { errno: 2, message: Some("gone".into()), offset: Some(44) });
    // With only the header of the answered message, and with the whole message.
    let capped = [&errno, &original[..16], &attrs].concat();
    assert_eq!(reply(&answer(2, 0x300, &capped)), Ok(full.clone()));
    let whole = [&errno[..], &original, &[0; 3], &attrs].concat();
    assert_eq!(reply(&answer(2, 0x200, &whole)), Ok(full));
    // Without attributes.
    let plain = Reply::Answer(Answer { errno: 2, message: None, offset: None });
    assert_eq!(reply(&answer(2, 0x100, &capped)), Ok(plain.clone()));
    let short = DecodeError::Message { said: 20, have: 7 };
    assert_eq!(reply(&answer(2, 0x100, &capped[..7])), Err(short));
    // The end of a list, with and without an error.
    assert_eq!(reply(&answer(3, 2, &[0; 4])), Ok(Reply::Done));
    assert_eq!(reply(&answer(3, 2, &errno)), Ok(plain));
    assert_eq!(reply(&answer(4, 0, &[])), Ok(Reply::Overrun));
    assert_eq!(reply(&answer(0x0a0c, 0, &[])), Ok(Reply::Object));
    assert_eq!(reply(&answer(1, 0, &[])), Ok(Reply::Other));
}

#[test]
fn interrupted_dumps_are_detected() {
    let interrupted = |flags| {
        let bytes = answer(0x0a0c, flags, &[0; 4]);
        messages(&bytes).next().unwrap().unwrap().is_interrupted()
    };
    assert!(interrupted(0x12));
    assert!(!interrupted(0x2));
}

#[test]
fn a_truncated_message_is_reported_once() {
    let bytes = answer(3, 0, &[0; 4]);
    for cut in 1..bytes.len() {
        let mut all = messages(&bytes[..cut]);
        let said = if cut < 16 { 16 } else { 20 };
        assert_eq!(all.next(), Some(Err(DecodeError::Message { said, have: cut })));
        assert_eq!(all.next(), None);
    }
}

#[test]
fn encoded_objects_can_be_decoded_like_kernel_dumps() {
    let set = Set {
        name: "endpoints".into(),
        key: vec![Field::Address(Family::Ipv4), Field::Slot],
        data: SetData::Value(vec![Field::Port]),
        kind: SetKind::Exact,
        comment: Some("a set".into()),
    };
    let hook = Hook { kind: ChainKind::Nat, point: HookPoint::Output, priority: -100 };
    let base = Chain {
        name: "base".into(),
        hook: Some(hook),
        rules: Vec::new(),
        comment: Some("a chain".into()),
    };
    let ops = vec![
        Op::AddTable { comment: "a table".into() },
        Op::AddSet(set.clone()),
        Op::AddChain(base),
    ];
    let bytes = encode(ops).bytes;
    let all: Vec<_> = messages(&bytes).map(Result::unwrap).collect();
    let other = Table { family: Family::Ipv4, name: "other".into() };
    let other_family = Table { family: Family::Ipv6, ..table() };

    let read = decode_table(&all[1]).unwrap().unwrap();
    assert_eq!((read.table, read.comment), (table(), Some("a table".into())));

    let read = decode_set(&all[2], &table()).unwrap().unwrap();
    assert!(read.is_like(&set));
    assert!(!read.is_like(&Set { kind: SetKind::Dynamic, ..set.clone() }));
    assert!(!read.is_like(&Set { data: SetData::Verdict, ..set.clone() }));
    assert!(!read.is_like(&Set { key: vec![Field::Slot], ..set }));
    assert_eq!(read.comment, Some("a set".into()));
    assert_eq!(decode_set(&all[2], &other), Ok(None));
    assert_eq!(decode_set(&all[2], &other_family), Ok(None));

    let read = decode_chain(&all[3], &table()).unwrap().unwrap();
    assert_eq!((read.name, read.comment), ("base".into(), Some("a chain".into())));
    assert!(read.hook.clone().unwrap() == hook);
    assert!(read.hook.unwrap() != Hook { priority: 0, ..hook });
    assert_eq!(decode_chain(&all[2], &table()), Ok(None));
    assert_eq!(decode_rule(&all[3], &table()), Ok(None));
}

#[test]
fn element_requests_contain_table_and_set() {
    let bytes = encode_request(Request::Elements(&table(), "endpoints"), 3);
    let expected = [
        &[48, 0, 0, 0, 13, 10, 1, 3, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0][..],
        &[12, 0, 1, 0],
        b"nearhop\0",
        &[14, 0, 2, 0],
        b"endpoints\0\0\0",
    ];
    assert_eq!(bytes, expected.concat());
}

fn any_element() -> impl Strategy<Value = Element> {
    let value =
        || prop::collection::vec(any::<u8>(), 1..=40).prop_map(|b| Bytes::from_slice(&b).unwrap());
    let data = prop_oneof![
        Just(Data::None),
        value().prop_map(Data::Value),
        Just(Data::Verdict(Verdict::Drop)),
        "[a-z0-9-]{1,40}".prop_map(|name| Data::Verdict(Verdict::Jump(name.into()))),
        "[a-z0-9-]{1,40}".prop_map(|name| Data::Verdict(Verdict::Goto(name.into()))),
    ];
    let end = prop::option::of(value().prop_map(Box::new));
    let comment = prop::option::of("[a-z/:ü ]{0,60}".prop_map(Into::into));
    (value(), end, data, comment).prop_map(|(key, end, data, comment)| Element {
        key,
        end,
        data,
        comment,
    })
}

proptest! {
    #[test]
    fn elements_round_trip(elements in prop::collection::vec(any_element(), 0..30)) {
        let read = decoded(&encode(vec![add(elements.clone())]).bytes);
        let read: Vec<Element> = read.into_iter().map(|read| read.element).collect();
        prop_assert_eq!(read, elements);
    }

    #[test]
    fn decoding_damaged_bytes_does_not_panic(
        elements in prop::collection::vec(any_element(), 1..5),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let set = Set {
            name: "s".into(),
            key: vec![Field::Address(Family::Ipv6), Field::Slot],
            data: SetData::None,
            kind: SetKind::Interval,
            comment: None,
        };
        let rules = vec![rule(vec![Expr::Masquerade])];
        let mut bytes = encode(vec![
            Op::AddTable { comment: "c".into() },
            Op::AddSet(set),
            chain("c", rules),
            add(elements),
        ]).bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let (mut names, mut found) = (Names::default(), Vec::new());
        for message in messages(&bytes[..cut.index(bytes.len())]).flatten() {
            let _ = message.reply();
            let _ = message.generation();
            let _ = decode_table(&message);
            let _ = decode_chain(&message, &table());
            let _ = decode_set(&message, &table());
            let _ = decode_rule(&message, &table());
            let _ = decode_elements(&message, &mut names, &mut found);
        }
    }
}
