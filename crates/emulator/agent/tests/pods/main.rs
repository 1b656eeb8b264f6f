//! The agent on the embedded API server, with real processes and packets.
//!
//! It has its own harness, because this binary is also the agent and its container processes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
use std::panic::catch_unwind;
#[cfg(target_os = "linux")]
use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod attack;
#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod world;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["agent", kubeconfig, root] => world::agent(kubeconfig.as_ref(), root.as_ref()),
        ["container", stage, file, ..] => {
            let stage = nearhop_agent::container::Stage::parse(stage).expect("a stage");
            nearhop_agent::container::main(stage, file.as_ref(), &arguments[3..])
        }
        ["attack", attack @ ..] => attack::main(attack),
        ["image", image, ..] => nearhop_agent::image::main(image, &arguments[2..]),
        _ => run_tests(&words),
    }
}

/// Runs the tests whose names contain one of the words; supports `--exact` and `--list`. nextest
/// lists all tests with `--list --format terse` and those to leave out with `--ignored` in addition.
#[cfg(target_os = "linux")]
fn run_tests(words: &[&str]) -> ExitCode {
    if words.contains(&"--ignored") {
        return ExitCode::SUCCESS;
    }
    let exact = words.contains(&"--exact");
    let is_filter = |word: &&&str| !word.starts_with("--") && **word != "terse";
    let filters: Vec<&&str> = words.iter().filter(is_filter).collect();
    let chosen = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if exact { name == **filter } else { name.contains(**filter) })
    };
    let mut failed = false;
    let all = cases::ALL.iter().chain(life::ALL).chain(hostile::ALL);
    for (name, test) in all.filter(|(name, _)| chosen(name)) {
        if words.contains(&"--list") {
            println!("{name}: test");
            continue;
        }
        let began = std::time::Instant::now();
        let ran = catch_unwind(|| nearhop_net::sandbox::run(name, || world::in_runtime(test)));
        let outcome = if ran.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {outcome} ({} ms)", began.elapsed().as_millis());
        failed |= ran.is_err();
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
