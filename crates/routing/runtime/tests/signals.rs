//! Sends real signals to a real process: this test starts itself again as a child.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nearhop_runtime::shutdown::Shutdown;

const CHILD: &str = "NEARHOP_TEST_SIGNALS_CHILD";
const NAME: &str = "first_signal_requests_shutdown_and_second_exits";

/// The child process: waits for the first signal, then ends slowly.
fn run_child() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(async {
        let shutdown = Shutdown::on_signals().expect("the signal handlers are installed");
        println!("\nwaiting");
        shutdown.wait().await;
        println!("\nstopping");
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("the kill program runs").success());
}

fn read_until(word: &str, lines: &mut BufReader<ChildStdout>) {
    let mut line = String::new();
    while line.trim() != word {
        line.clear();
        assert_ne!(
            lines.read_line(&mut line).expect("the child writes text"),
            0,
            "the child ended early"
        );
    }
}

#[test]
fn first_signal_requests_shutdown_and_second_exits() {
    if std::env::var_os(CHILD).is_some() {
        return run_child();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    read_until("waiting", &mut lines);
    send("-TERM", &child);
    read_until("stopping", &mut lines);
    send("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
