//! Tests of the flags and the exit code.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn parse(args: &[&str]) -> Result<Question, String> {
    let all = [&["drive", "web"], args].concat();
    let command = Command::try_parse_from(all).map_err(|error| error.to_string())?;
    command.args.question().map_err(|error| error.to_string())
}

fn amount(args: &[&str]) -> (Option<u64>, Option<u64>, Option<f64>) {
    let amount = parse(args).unwrap().amount;
    (amount.connections, amount.duration.map(|duration| duration.as_secs()), amount.rate)
}

#[test]
fn a_number_is_the_default_unless_a_duration_is_given() {
    assert_eq!(amount(&[]), (Some(1000), None, None));
    assert_eq!(amount(&["--rate", "50"]), (Some(1000), None, Some(50.0)));
    assert_eq!(amount(&["--duration", "30s"]), (None, Some(30), None));
    assert_eq!(amount(&["--duration", "30s", "-n", "9"]), (Some(9), Some(30), None));
}

#[test]
fn an_interval_of_watch_is_filled_evenly() {
    assert_eq!(amount(&["--watch"]), (Some(200), None, Some(200.0)));
    assert_eq!(amount(&["--watch=5s", "--rate", "50/s"]), (Some(250), None, Some(50.0)));
    assert_eq!(amount(&["--watch=2s", "-n", "10"]), (Some(10), None, Some(5.0)));
    assert_eq!(amount(&["--watch", "--duration", "9s"]), (Some(200), None, Some(200.0)));
    assert!(
        parse(&["--watch", "-n", "1", "--rate", "1"]).unwrap_err().contains("omit -n or --rate")
    );
}

#[test]
fn impossible_values_are_refused() {
    for (args, wanted) in [
        (&["--rate", "0"][..], "connections per second"),
        (&["--rate", "nan"], "connections per second"),
        (&["--duration", "0s"], "expected 100ms to 86400s"),
        (&["--timeout", "soon"], "expected a duration"),
        (&["--watch=1ms"], "expected 200ms"),
        (&["-n", "0"], "1..=100000000"),
        (&["--by", "rack"], "invalid value 'rack'"),
        (&["--assert", "cross-zone<=lots"], "at character 13: expected a percentage"),
        (&["--from", "external", "--by", "cpu"], "omit --by or --from"),
    ] {
        let refused = parse(args).unwrap_err();
        assert!(refused.contains(wanted), "{args:?}: {refused}");
    }
}

#[test]
fn failed_connections_fail_the_command_unless_an_assertion_is_about_them() {
    let code = |answered: u64, failed: u64, assertions: &[&str]| {
        let flags = assertions.iter().flat_map(|text| ["--assert", text]);
        let all: Vec<&str> = ["drive", "web"].into_iter().chain(flags).collect();
        let args = Command::try_parse_from(all).unwrap().args;
        let connections = answered + failed;
        let cross_zone = (answered > 0).then_some(0.0);
        let report = Report { connections, answered, failed, cross_zone, ..Report::default() };
        exit_code(&judged(report, &args.assertions), &args)
    };
    assert_eq!(code(10, 0, &[]), ExitCode::SUCCESS);
    assert_eq!(code(10, 1, &[]), ExitCode::from(1));
    assert_eq!(code(0, 0, &[]), ExitCode::from(1), "nothing was tried");
    assert_eq!(code(10, 1, &["cross-zone<=1%"]), ExitCode::from(1));
    assert_eq!(code(10, 1, &["failed<=1"]), ExitCode::SUCCESS);
    assert_eq!(code(10, 2, &["failed<=1"]), ExitCode::from(1));
    assert_eq!(code(0, 10, &["answered==0"]), ExitCode::SUCCESS);
    assert_eq!(code(0, 10, &["answered==0", "cross-zone<=1%"]), ExitCode::from(1));
}
