//! The form of the help of each command: purpose, details, usage, flags in groups, examples.
//!
//! The texts are beside the flags. This file brings them into one form, and its tests check that no
//! text is missing and that each example is a valid call.

use clap::builder::styling::{AnsiColor, Effects, Styles};
use clap::builder::{Resettable, StyledStr};
use clap::{Arg, ArgAction, Command};

use crate::environment::variable;

const HEADING: anstyle::Style = AnsiColor::Green.on_default().effects(Effects::BOLD);

/// cargo's colours.
const STYLES: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// The details follow the purpose, before the usage.
const TEMPLATE: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Flags that every command has.
pub(crate) const GLOBAL: &str = "Global options";

/// Brings the help of a command, and of the commands below it, into the common form.
pub(crate) fn arrange(command: Command) -> Command {
    arrange_below(command.styles(STYLES), "")
}

fn arrange_below(command: Command, path: &str) -> Command {
    if command.is_hide_set() {
        return command;
    }
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    let version = Arg::new("version").short('V').long("version").action(ArgAction::Version);
    let command = match command.get_version().is_some() {
        true => command
            .disable_version_flag(true)
            .arg(version.help("Print the version").help_heading(GLOBAL)),
        false => command,
    };
    let command = split_about(command)
        .help_template(TEMPLATE)
        .mut_args(arrange_flag)
        .disable_help_flag(true)
        .arg(help.help("Print this help").help_heading(GLOBAL));
    let after = after_help(&command, path);
    command.after_help(after).mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        arrange_below(sub, path.trim_start())
    })
}

fn arrange_flag(arg: Arg) -> Arg {
    // One form for -h and --help, so that no text is found only in one of them.
    let arg = match arg.get_long_help().cloned() {
        Some(long) => arg.help(long).long_help(Resettable::Reset),
        None => arg,
    };
    // `[default: ""]` says nothing.
    let defaults = arg.get_default_values();
    let is_empty = !defaults.is_empty() && defaults.iter().all(|value| value.is_empty());
    let arg = if is_empty { arg.hide_default_value(true) } else { arg };
    let names = arg.get_value_names().unwrap_or_default();
    let lists_values = names.iter().any(|name| name.contains('|'));
    if lists_values { arg.hide_possible_values(true) } else { arg }
}

/// Puts all paragraphs but the first one into the details.
fn split_about(command: Command) -> Command {
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    match long.split_once("\n\n") {
        Some((purpose, details)) => command
            .about(purpose.trim_end_matches('.').to_owned())
            .before_help(details.to_owned())
            .long_about(Resettable::Reset),
        None => command,
    }
}

/// The examples with coloured headings, and the variables.
fn after_help(command: &Command, path: &str) -> StyledStr {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let is_heading = |line: &str| line.ends_with(':') && !line.starts_with(' ');
    let mut lines: Vec<String> = text
        .trim_end()
        .lines()
        .map(|line| if is_heading(line) { heading(line) } else { line.to_owned() })
        .collect();
    if let Some(flag) = own_flag(command, path) {
        lines.push(String::new());
        lines.push(heading("Environment:"));
        let variable = variable(path, flag);
        lines.push(format!("  Each flag has a variable: --{flag} is {variable}"));
    }
    StyledStr::from(lines.join("\n").trim_start().to_owned())
}

/// The first flag whose variable belongs to this command alone.
fn own_flag<'a>(command: &'a Command, path: &str) -> Option<&'a str> {
    let own = format!("NEARHOP_{}_", path.to_uppercase().replace(['-', ' '], "_"));
    let mut longs = command.get_arguments().filter_map(Arg::get_long);
    longs.find(|long| *long != "help" && !path.is_empty() && variable(path, long).starts_with(&own))
}

fn heading(text: &str) -> String {
    format!("{HEADING}{text}{HEADING:#}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::error::ErrorKind;

    use super::*;
    use crate::commands;

    /// Every command that help shows, with its path.
    fn each(command: &Command, path: &str, check: &mut dyn FnMut(&str, &Command)) {
        check(path, command);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            each(sub, &format!("{path} {}", sub.get_name()), check);
        }
    }

    fn for_each_command(mut check: impl FnMut(&str, &Command)) {
        each(&arrange(commands::all()), "nearhop", &mut check);
    }

    fn examples(command: &Command) -> Vec<String> {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        // A backslash continues a line.
        let text = text.replace("\\\n", " ");
        let lines = text.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines.take_while(|line| line.starts_with(' ')).map(|line| line.trim().to_owned()).collect()
    }

    /// The words of the first command of a line, as a shell reads them.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for c in line.chars() {
            match (quote, c) {
                (None, '|' | ';' | '&' | '#' | '>') => break,
                (None, '\'' | '"') => quote = Some(c),
                (None, ' ') => words.push(String::new()),
                (Some(open), c) if c == open => quote = None,
                (_, c) => words.last_mut().expect("there is a word").push(c),
            }
        }
        words.retain(|word| !word.is_empty() && word != "sudo");
        words
    }

    #[test]
    fn the_commands_are_consistent_for_clap() {
        arrange(commands::all()).debug_assert();
    }

    #[test]
    fn every_command_and_every_flag_has_a_description() {
        for_each_command(|path, command| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 10, "{path} has no purpose");
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 5, "{path}: {arg} has no description");
            }
        });
    }

    #[test]
    fn every_command_has_an_example() {
        for_each_command(|path, command| {
            assert!(!examples(command).is_empty(), "{path} has no `Examples:` in after_help");
        });
    }

    #[test]
    fn every_example_is_a_valid_call_of_its_command() {
        for_each_command(|path, command| {
            let mut own = 0;
            for example in examples(command) {
                let words = words(&example);
                if words.first().is_none_or(|word| word != "nearhop") {
                    continue;
                }
                own += usize::from(words.join(" ").starts_with(path));
                match arrange(commands::all()).try_get_matches_from(&words) {
                    Err(error) if error.kind() != ErrorKind::DisplayHelp => {
                        panic!("{path}: {example}: {error}");
                    }
                    _ => {}
                }
            }
            assert!(own > 0, "{path}: no example calls the command itself");
        });
    }

    #[test]
    fn output_formats_have_the_same_values_everywhere() {
        for_each_command(|path, command| {
            let Some(output) = command.get_arguments().find(|arg| arg.get_long() == Some("output"))
            else {
                return;
            };
            let values = output.get_possible_values();
            let mut names: BTreeSet<&str> = BTreeSet::new();
            values.iter().for_each(|value| names.extend(value.get_name_and_aliases()));
            for name in ["text", "table", "json"] {
                assert!(names.contains(name), "{path} -o has no value {name}");
            }
        });
    }

    /// Proper groups, instead of one list that no reader takes in.
    #[test]
    fn long_lists_of_flags_are_grouped() {
        for_each_command(|path, command| {
            let flags: Vec<&Arg> = command
                .get_arguments()
                .filter(|arg| !arg.is_positional() && !arg.is_hide_set())
                .collect();
            let loose = flags.iter().filter(|arg| arg.get_help_heading().is_none()).count();
            assert!(
                flags.len() <= 14 || loose == 0,
                "{path}: {loose} of {} flags have no help_heading",
                flags.len()
            );
        });
    }
}
