//! Colours: on a terminal and nowhere else, unless `--color`, `NO_COLOR` or `CLICOLOR_FORCE` says
//! otherwise.

use std::io::stderr;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use nearhop_runtime::log::Colors;

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const FAILED: Style = AnsiColor::Red.on_default();

/// Applies the choice to everything that this process prints. Called before the arguments are
/// parsed, because help and errors of the parser have colours, too.
pub(crate) fn apply(args: &[String]) {
    let variable = std::env::var("NEARHOP_COLOR").unwrap_or_default();
    let choice = match choose(args, &variable) {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    };
    choice.write_global();
}

/// The last `--color` before `--`, else the variable. An invalid value is left to the parser.
fn choose(args: &[String], variable: &str) -> Color {
    let own = args.iter().take_while(|arg| *arg != "--");
    let mut given = None;
    let mut before = "";
    for arg in own {
        if before == "--color" {
            given = Some(arg.as_str());
        }
        given = arg.strip_prefix("--color=").or(given);
        before = arg;
    }
    let value = given.unwrap_or(variable);
    Color::from_str(value, false).unwrap_or_default()
}

/// For log lines.
pub(crate) fn of_logs() -> Colors {
    match AutoStream::choice(&stderr()) {
        ColorChoice::Never => Colors::Off,
        _ => Colors::On,
    }
}

/// A line for standard error: the word before the message has a colour.
pub(crate) fn paint_message(line: &str) -> String {
    for (word, style) in [("error:", ERROR), ("warning:", WARNING)] {
        if let Some(rest) = line.strip_prefix(word) {
            return format!("{style}{word}{style:#}{rest}");
        }
    }
    line.to_owned()
}

/// A failure in the result of a command.
pub(crate) fn paint_failure(text: &str) -> String {
    format!("{FAILED}{text}{FAILED:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_over_the_variable_and_ends_at_two_dashes() {
        let chosen = |args: &str, variable: &str| {
            let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
            choose(&args, variable)
        };
        assert_eq!(chosen("lab status", ""), Color::Auto);
        assert_eq!(chosen("lab status", "never"), Color::Never);
        assert_eq!(chosen("lab --color always status", "never"), Color::Always);
        assert_eq!(chosen("--color=never --color=always", ""), Color::Always);
        assert_eq!(chosen("lab exec web -- ls --color=always", ""), Color::Auto);
        assert_eq!(chosen("--color=blue", ""), Color::Auto);
    }
}
