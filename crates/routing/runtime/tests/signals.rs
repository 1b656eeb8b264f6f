//! Sends real signals to a real process: this test starts itself again as a child.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nearhop_runtime::shutdown::Shutdown;

const CHILD: &str = "NEARHOP_TEST_SIGNALS_CHILD";
const NAME: &str = "the_first_signal_asks_and_the_second_ends";

/// The child process: waits for the first signal, then ends slowly.
fn run_child() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let shutdown = Shutdown::on_signals().expect("signals can be received");
        println!("\nwaiting");
        shutdown.wait().await;
        println!("\nstopping");
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("there is kill").success());
}

fn read_until(word: &str, lines: &mut BufReader<ChildStdout>) {
    let mut line = String::new();
    while line.trim() != word {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("it writes text"), 0, "it ended early");
    }
}

#[test]
fn the_first_signal_asks_and_the_second_ends() {
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
