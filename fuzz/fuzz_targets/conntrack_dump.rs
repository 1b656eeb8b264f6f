//! Any bytes that come from the kernel are flows or errors, never a panic; and a flow that was read
//! can be asked about again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_netfilter::conntrack::{Flow, delete_flow};
use nearhop_netfilter::wire::messages;

fuzz_target!(|bytes: &[u8]| {
    for message in messages(bytes).flatten() {
        let _ = message.reply();
        if let Ok(Some(flow)) = Flow::decode(&message) {
            let request = delete_flow(1, &flow);
            // Header, direction with two addresses and two ports, id: a request with less could
            // mean more flows than this one.
            assert!(request.len() >= 16 + 4 + 52 + 8);
            assert_eq!(messages(&request).flatten().count(), 1);
        }
    }
});
