//! Errors as a user reads them: one line with the cause and the cure, each said once; exit code 2.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod command;

use command::{nearhop, text};

/// Standard error of a call that must fail before it does anything.
fn fail(args: &[&str]) -> String {
    let output = nearhop(args).env("HOME", "/nonexistent").output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    stderr
}

#[test]
fn every_error_is_one_line_with_the_cure() {
    for (args, message) in [
        (
            &["controller", "--once"][..],
            "kubeconfig /nonexistent/.kube/config does not exist; pass --kubeconfig or set \
             KUBECONFIG",
        ),
        (
            &["dns", "--kubeconfig", "/no/such"],
            "kubeconfig /no/such does not exist; pass --kubeconfig or set KUBECONFIG",
        ),
        (
            &["version", "--kubeconfig", "/no/such", "-o", "svg"],
            "invalid value 'svg' for '--output <FORMAT>'",
        ),
        (
            &["dns", "--resolv-conf", "/no/such"],
            "cannot read --resolv-conf /no/such: No such file or directory; set --upstream, or \
             --resolv-conf /dev/null for no upstream servers",
        ),
        (
            &["dns", "--listen", "here"],
            "invalid value 'here' for '--listen <ADDRESS:PORT,…>': expected ADDRESS:PORT such as \
             10.96.0.10:53",
        ),
        (
            &["manifests", "-n", "A B"],
            "invalid value 'A B' for '--namespace <NAMESPACE>': expected the name of a Namespace: up \
             to 63 lowercase letters, digits and `-`, such as kube-system",
        ),
        (
            &["apiserver", "--data-dir", "/proc/none"],
            "cannot use the data directory /proc/none: No such file or directory; choose another, or \
             correct its permissions",
        ),
        (
            &["controller", "--leader-elect-renew-deadline", "20s"],
            "invalid leader election settings: the lease duration (15s) must be longer than the renew \
             deadline (20s), or another process leads before the holder has stopped",
        ),
        (&["conform", "/no/such"], "/no/such does not exist"),
        (
            &["manpages", "/proc/none"],
            "cannot create the directory /proc/none: No such file or directory",
        ),
    ] {
        let stderr = fail(args);
        let first = stderr.lines().next().unwrap_or_default();
        assert_eq!(first, format!("error: {message}"), "{args:?}");
    }
}

#[test]
fn a_wrong_command_suggests_the_right_one() {
    let stderr = fail(&["prox"]);
    assert!(stderr.contains("a similar subcommand exists: 'proxy'"), "{stderr}");
}
