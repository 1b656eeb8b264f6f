//! Invalid flags: the error names the flag and the cure.

use anyhow::{Context, Result, ensure};
use nearhop_proxy::kernel::Kernel;
use nearhop_tests::node::process::output;
use nearhop_tests::node::{Api, run};

/// Arguments, and what the error must contain.
const WRONG: &[(&[&str], &[&str])] = &[
    (&["--sync-period", "0s"], &["--sync-period", "positive"]),
    (&["--min-sync-period", "1m"], &["--min-sync-period", "--sync-period", "shorter"]),
    (&["--sync-period", "soon"], &["--sync-period", "such as 500ms"]),
    (&["--verify-period", "0"], &["--verify-period", "positive"]),
    (&["--cluster-cidr", "10.244.0.0/99"], &["--cluster-cidr", "such as 10.244.0.0/16"]),
    (&["--service-cluster-ip-range", "x"], &["--service-cluster-ip-range", "such as"]),
    (&["--ip-families", "IPv5"], &["--ip-families", "IPv4 or IPv6"]),
    (&["--detect-local-mode", "Magic"], &["--detect-local-mode", "ClusterCIDR", "NodeCIDR"]),
    (&["--detect-local-mode", "BridgeInterface"], &["--pod-bridge-interface", "1 to 15"]),
    (
        &[
            "--detect-local-mode",
            "InterfaceNamePrefix",
            "--pod-interface-name-prefix",
            "much-too-long-for-this",
        ],
        &["--pod-interface-name-prefix", "1 to 15"],
    ),
    (
        &["--nodeport-addresses", "primary,10.0.0.0/8"],
        &["--nodeport-addresses", "primary cannot be combined with ranges"],
    ),
    (&["--nodeport-addresses", "10.0.0.0/x"], &["--nodeport-addresses", "such as"]),
    (&["--masquerade-bit", "32"], &["--masquerade-bit", "0..=31"]),
    (&["--table", "1st"], &["--table", "expected a letter"]),
    (&["--udp-rehome", "later"], &["--udp-rehome", "new-only", "immediate"]),
    (&["--healthz-bind-address", "here"], &["--healthz-bind-address", "ADDRESS:PORT"]),
    (&["--metrics-bind-address", "1.2.3.4"], &["--metrics-bind-address", "ADDRESS:PORT"]),
    (&["--feature-gates", "Everything=maybe"], &["--feature-gates"]),
    (&["--conntrack-tcp-be-liberal", "perhaps"], &["--conntrack-tcp-be-liberal", "true, false"]),
    (&["--bind-address", "somewhere"], &["--bind-address"]),
    (&["--admin-token-file", "/nowhere/token"], &["--admin-token-file", "/nowhere/token"]),
    (&["--admin-token-file", "/dev/null"], &["--admin-token-file", "no token"]),
    (&["--context", "mars"], &["mars"]),
    (&["--proxy-mode", "iptables"], &["--proxy-mode"]),
];

#[test]
fn invalid_flags_are_refused_with_a_cure() {
    run("flags::invalid_flags_are_refused_with_a_cure", Api::Memory, async |site| -> Result<()> {
        for (arguments, words) in WRONG {
            let mut all = vec!["--metrics-bind-address", "127.0.0.1:0"];
            if arguments.contains(&"--metrics-bind-address") {
                all.clear();
            }
            all.extend(*arguments);
            let output = output(site, &all).with_context(|| format!("{arguments:?}"))?;
            let text = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(2), "{arguments:?}: {}: {text}", output.status);
            for word in *words {
                ensure!(text.contains(word), "{arguments:?}: no {word:?} in: {text}");
            }
        }
        // Two ranges of the same family.
        let twice = ["--cluster-cidr", "10.245.0.0/16,10.246.0.0/16"];
        let output = output(site, &twice)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2) && text.contains("--cluster-cidr"), "{text}");
        ensure!(Kernel::open()?.tables()?.is_empty(), "a refused proxy has written a table");
        Ok(())
    });
}
