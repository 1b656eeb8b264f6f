//! Command line of the chaos test: a seed and a duration, and the options with which `cargo test` and cargo-nextest list
//! and select tests.

use std::process::ExitCode;

use anyhow::{Context, Result};

#[derive(Default)]
struct Arguments {
    list: bool,
    ignored: bool,
    exact: bool,
    filters: Vec<String>,
    seed: Option<u64>,
    seconds: Option<u64>,
}

/// Options of the standard harness that have a value and no meaning here.
const WITH_VALUE: [&str; 6] =
    ["--format", "--test-threads", "--color", "--skip", "--logfile", "--shuffle-seed"];

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut parsed = Arguments::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--list" => parsed.list = true,
            "--ignored" => parsed.ignored = true,
            "--exact" => parsed.exact = true,
            "--seed" => parsed.seed = Some(value()?.parse().context("--seed")?),
            "--seconds" => parsed.seconds = Some(value()?.parse().context("--seconds")?),
            flag if WITH_VALUE.contains(&flag) => drop(value()?),
            flag if flag.starts_with('-') => {}
            _ => parsed.filters.push(argument),
        }
    }
    Ok(parsed)
}

fn name(seed: u64) -> String {
    format!("slices_are_correct_after_chaos_with_seed_{seed}")
}

/// Runs the selected seeds, each for `seconds`.
pub(crate) fn main(seeds: &[u64], seconds: u64, run: impl Fn(u64, u64) -> Result<()>) -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let chosen = |seed: &u64| {
        let name = name(*seed);
        let fits = |filter: &String| {
            if arguments.exact { name == *filter } else { name.contains(filter.as_str()) }
        };
        arguments.filters.is_empty() || arguments.filters.iter().any(fits)
    };
    let seeds: Vec<u64> = match arguments.seed {
        Some(seed) => vec![seed],
        // No test is ignored, so `--ignored` selects none.
        None if arguments.ignored => Vec::new(),
        None => seeds.iter().copied().filter(chosen).collect(),
    };
    if arguments.list {
        seeds.iter().for_each(|seed| println!("{}: test", name(*seed)));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", seeds.len());
    let mut failed = 0;
    for seed in &seeds {
        match run(*seed, arguments.seconds.unwrap_or(seconds)) {
            Ok(()) => println!("test {} ... ok", name(*seed)),
            Err(error) => {
                failed += 1;
                println!("test {} ... FAILED\n{error:#}", name(*seed));
            }
        }
    }
    let (verdict, passed) = (if failed == 0 { "ok" } else { "FAILED" }, seeds.len() - failed);
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
