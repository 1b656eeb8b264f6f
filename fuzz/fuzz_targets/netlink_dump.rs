//! Any bytes are the kernel's answer: they are read or refused, and what was read can be written
//! and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_core::Family;
use nearhop_netfilter::object::{Batch, Element, Op, Table};
use nearhop_netfilter::wire::{
    Names, decode_chain, decode_elements, decode_rule, decode_set, decode_table, encode_batch,
    messages,
};

fuzz_target!(|bytes: &[u8]| {
    let table = Table { family: Family::Ipv4, name: "t".into() };
    let mut elements: Vec<Element> = Vec::new();
    for message in messages(bytes).flatten() {
        let _ = (message.reply(), message.generation(), message.is_interrupted());
        let _ = (decode_table(&message), decode_chain(&message, &table));
        let _ = (decode_rule(&message, &table), decode_set(&message, &table));
        elements.extend(read(&message));
    }
    // A comment may be cut when it is written, a name refused by the kernel.
    elements.iter_mut().for_each(|element| element.comment = None);
    let ops = vec![Op::AddElements { set: "s".into(), elements: elements.clone() }];
    let encoded = encode_batch(&Batch { table, ops }, 1);
    let again: Vec<Element> =
        messages(&encoded.bytes).flat_map(|message| read(&message.expect("we wrote it"))).collect();
    if elements.iter().all(|element| chain_len(element) < 256) {
        assert_eq!(again, elements);
    }
});

fn read(message: &nearhop_netfilter::wire::Message<'_>) -> Vec<Element> {
    let mut found = Vec::new();
    let _ = decode_elements(message, &mut Names::default(), &mut found);
    found.into_iter().map(|dumped| dumped.element).collect()
}

fn chain_len(element: &Element) -> usize {
    use nearhop_netfilter::object::{Data, Verdict};
    match &element.data {
        Data::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => chain.len(),
        _ => 0,
    }
}
