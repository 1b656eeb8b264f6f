//! Each flag has an environment variable, and each variable has one meaning.
//!
//! A flag that means the same in every command is `NEARHOP_<FLAG>`; any other flag is
//! `NEARHOP_<COMMAND>_<FLAG>`. The names of earlier versions still work, with a warning. An empty
//! variable counts as unset, so that `NAME=` in a shell or a manifest removes a setting; a flag that
//! accepts an empty value gets it from the command line (`--condition-domain=`).

mod former;

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::output::warn;
use former::FORMER;

/// Flags that mean the same in every command.
const SHARED: &[&str] = &[
    "cluster-domain",
    "color",
    "context",
    "feature-gates",
    "kubeconfig",
    "log-format",
    "output",
    "verbosity",
];

/// Flags that share only the name with those above: `lab up --kubeconfig` joins that cluster, and
/// `controller --output` needs `--dry-run`.
const UNSHARED: &[(&str, &str)] = &[("lab up", "kubeconfig"), ("controller", "output")];

/// Flags that mean the same in all commands below one.
const GROUPED: &[(&str, &str)] = &[("lab", "name")];

/// A flag that got its value from a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The command, such as `lab up`.
    command: String,
    /// The id of the flag in clap.
    id: String,
    flag: String,
    short: Option<char>,
    variable: String,
    /// The present name, if the variable has a former one.
    renamed: Option<String>,
}

/// Gives the flags of a command, and of the commands below it, the values of their variables.
pub(crate) fn attach(command: Command, value: &dyn Fn(&str) -> bool) -> (Command, Vec<Setting>) {
    let mut settings = Vec::new();
    let command = attach_below(command, "", value, &mut settings);
    (command, settings)
}

/// Whether the environment has a value for this variable.
pub(crate) fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != OsStr::new(""))
}

fn attach_below(
    command: Command,
    path: &str,
    is_set: &dyn Fn(&str) -> bool,
    settings: &mut Vec<Setting>,
) -> Command {
    // Hidden commands are started by nearhop itself, which gives every flag.
    if command.is_hide_set() {
        return command;
    }
    let command = command.mut_args(|arg| match find(path, &arg, is_set) {
        Some(setting) => {
            let arg = with_variable(arg, &setting.variable);
            settings.push(setting);
            arg
        }
        None => arg,
    });
    command.mut_subcommands(|sub| {
        let path = join(path, sub.get_name());
        attach_below(sub, &path, is_set, settings)
    })
}

/// The setting of a flag, if one of its variables is set.
fn find(path: &str, arg: &Arg, is_set: &dyn Fn(&str) -> bool) -> Option<Setting> {
    let flag = arg.get_long()?;
    let present = variable(path, flag);
    let (variable, renamed) = if is_set(&present) {
        (present, None)
    } else {
        let former = former(path, flag).filter(|former| is_set(former))?;
        (former, Some(present))
    };
    Some(Setting {
        command: path.to_owned(),
        id: arg.get_id().to_string(),
        flag: flag.to_owned(),
        short: arg.get_short(),
        variable,
        renamed,
    })
}

fn with_variable(arg: Arg, variable: &str) -> Arg {
    let arg = arg.env(variable.to_owned()).hide_env(true);
    // For switches, `1` means the same as `true`.
    match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    }
}

/// The variable of a flag: `NEARHOP_PROXY_TABLE`, or `NEARHOP_KUBECONFIG` for a flag that means the
/// same in every command.
pub(crate) fn variable(path: &str, flag: &str) -> String {
    let unshared = UNSHARED.contains(&(path, flag));
    if SHARED.contains(&flag) && !unshared {
        return name("", flag);
    }
    let group = GROUPED.iter().find(|(group, grouped)| *grouped == flag && is_below(path, group));
    name(group.map_or(path, |(group, _)| group), flag)
}

/// The variable that this flag had before each command had its own.
fn former(path: &str, flag: &str) -> Option<String> {
    let grouped = GROUPED.iter().any(|(group, name)| *name == flag && is_below(path, group));
    let renamed = FORMER.iter().any(|(command, flags)| *command == path && flags.contains(&flag));
    (grouped || renamed).then(|| name("", flag))
}

fn is_below(path: &str, group: &str) -> bool {
    path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

fn name(path: &str, flag: &str) -> String {
    let name = join("NEARHOP", &join(path, flag));
    name.replace(['-', ' '], "_").to_uppercase()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }
}

/// Warns about former names that this call uses.
pub(crate) fn warn_about_former_names(settings: &[Setting], matches: &ArgMatches) {
    let used = settings.iter().filter(|setting| is_used(setting, matches));
    let renamed = used.filter_map(|setting| Some((&setting.variable, setting.renamed.as_ref()?)));
    // A flag that a command inherits is there twice.
    for (former, present) in renamed.collect::<BTreeSet<_>>() {
        warn(&format!("{former} is a former name; set {present} instead"));
    }
}

fn is_used(setting: &Setting, matches: &ArgMatches) -> bool {
    let names = setting.command.split(' ').filter(|name| !name.is_empty());
    let mut at = matches;
    for name in names {
        match at.subcommand_matches(name) {
            Some(below) => at = below,
            None => return false,
        }
    }
    at.value_source(&setting.id) == Some(ValueSource::EnvVariable)
}

/// The variable that an invalid value comes from: the message of clap names only the flag.
pub(crate) fn origin_of<'a>(
    error: &clap::Error,
    settings: &'a [Setting],
    args: &[String],
) -> Option<&'a Setting> {
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let words = |command: &str| command.split(' ').all(|word| args.iter().any(|arg| arg == word));
    settings.iter().find(|setting| {
        let long = format!("--{}", setting.flag);
        invalid.split(' ').any(|word| word == long)
            && !args.iter().any(|arg| setting.is_given_by(arg))
            && (setting.command.is_empty() || words(&setting.command))
    })
}

impl Setting {
    /// Whether this argument is the flag.
    fn is_given_by(&self, arg: &str) -> bool {
        let long = arg.strip_prefix("--").and_then(|arg| arg.strip_prefix(self.flag.as_str()));
        let is_long = long.is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        is_long || self.short.is_some_and(|short| arg.starts_with(&format!("-{short}")))
    }

    /// A note for the error of an invalid value.
    pub(crate) fn note(&self) -> String {
        format!("--{} has this value from the variable {}", self.flag, self.variable)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Write as _;

    use super::*;
    use crate::commands;

    /// Every flag: command, flag, value name.
    fn flags(command: &Command, path: &str, found: &mut Vec<(String, String, String)>) {
        if command.is_hide_set() {
            return;
        }
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            if ["help", "version"].contains(&long) {
                continue;
            }
            let value = arg.get_value_names().and_then(|names| names.first());
            let value = value.map_or_else(String::new, ToString::to_string);
            found.push((path.to_owned(), long.to_owned(), value));
        }
        for sub in command.get_subcommands() {
            flags(sub, &join(path, sub.get_name()), found);
        }
    }

    fn all_flags() -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        flags(&commands::all(), "", &mut found);
        found
    }

    /// The variables that flags have when `set` are in the environment.
    fn used(set: &[&str]) -> Vec<(String, String, Option<String>)> {
        let (command, settings) = attach(commands::all(), &|name| set.contains(&name));
        command.debug_assert();
        let row = |one: Setting| (one.command + " --" + &one.flag, one.variable, one.renamed);
        settings.into_iter().map(row).collect()
    }

    #[test]
    fn flags_with_different_meanings_have_different_variables() {
        let mut by_variable: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
        for (path, flag, _) in all_flags() {
            by_variable.entry(variable(&path, &flag)).or_default().insert((path, flag));
        }
        for (variable, flags) in by_variable {
            let names: BTreeSet<&String> = flags.iter().map(|(_, flag)| flag).collect();
            assert_eq!(names.len(), 1, "{variable} sets several flags: {flags:?}");
            let shared = flags.iter().all(|(path, flag)| {
                SHARED.contains(&flag.as_str())
                    || GROUPED.iter().any(|(group, name)| name == flag && is_below(path, group))
            });
            assert!(flags.len() == 1 || shared, "{variable} has several meanings: {flags:?}");
        }
    }

    /// A shared flag that takes another kind of value has another meaning.
    #[test]
    fn shared_flags_take_the_same_values() {
        let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let shared = |path: &str, flag: &str| variable(path, flag) == name("", flag);
        for (path, flag, value) in all_flags() {
            // The demo can also print a drawing, and `manifests` prints YAML.
            if shared(&path, &flag) && flag != "output" {
                kinds.entry(flag).or_default().insert(value);
            }
        }
        for (flag, values) in kinds {
            assert_eq!(values.len(), 1, "--{flag}: {values:?}");
        }
    }

    #[test]
    fn a_variable_names_its_command_unless_the_flag_is_shared() {
        for (path, flag, expected) in [
            ("proxy", "bind-address", "NEARHOP_PROXY_BIND_ADDRESS"),
            ("lab up", "delay", "NEARHOP_LAB_UP_DELAY"),
            ("lab fault flaky", "delay", "NEARHOP_LAB_FAULT_FLAKY_DELAY"),
            ("lab exec", "name", "NEARHOP_LAB_NAME"),
            ("lab", "name", "NEARHOP_LAB_NAME"),
            ("controller", "kubeconfig", "NEARHOP_KUBECONFIG"),
            ("lab up", "kubeconfig", "NEARHOP_LAB_UP_KUBECONFIG"),
            ("", "color", "NEARHOP_COLOR"),
        ] {
            assert_eq!(variable(path, flag), expected, "{path} --{flag}");
        }
    }

    #[test]
    fn the_present_name_wins_over_the_former_one() {
        let both = used(&["NEARHOP_TABLE", "NEARHOP_PROXY_TABLE"]);
        let flag = "proxy --table".to_owned();
        assert_eq!(both, [(flag.clone(), "NEARHOP_PROXY_TABLE".to_owned(), None)]);
        let former = used(&["NEARHOP_TABLE"]);
        let present = Some("NEARHOP_PROXY_TABLE".to_owned());
        assert_eq!(former, [(flag, "NEARHOP_TABLE".to_owned(), present)]);
    }

    /// NEARHOP_KUBECONFIG is the cluster to talk to; it no longer makes a lab join that cluster.
    #[test]
    fn the_kubeconfig_variable_does_not_make_a_lab_join_a_cluster() {
        let used = used(&["NEARHOP_KUBECONFIG"]);
        assert!(!used.is_empty() && used.iter().all(|(flag, ..)| !flag.starts_with("lab")));
    }

    #[test]
    fn hidden_commands_have_no_variables() {
        let used = used(&["NEARHOP_SPEC", "NEARHOP_JOB", "NEARHOP_LAB_SUPERVISOR_SPEC"]);
        assert_eq!(used, []);
    }

    #[test]
    fn former_names_belong_to_flags_that_exist() {
        let flags: BTreeSet<(String, String)> =
            all_flags().into_iter().map(|(path, flag, _)| (path, flag)).collect();
        for (command, names) in FORMER {
            for flag in *names {
                let key = ((*command).to_owned(), (*flag).to_owned());
                assert!(flags.contains(&key), "{command} --{flag} is gone: remove it from FORMER");
            }
        }
    }

    /// The page's table, between its two marks.
    fn table() -> String {
        let mut rows: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        for (path, flag, _) in all_flags() {
            rows.entry(variable(&path, &flag)).or_default().push((path, flag));
        }
        let mut text = "| variable | command | flag |\n|---|---|---|\n".to_owned();
        for (variable, mut flags) in rows {
            flags.sort();
            let paths: Vec<String> = flags
                .iter()
                .map(
                    |(path, _)| {
                        if path.is_empty() { "all".to_owned() } else { format!("`{path}`") }
                    },
                )
                .collect();
            let _ = writeln!(text, "| `{variable}` | {} | `--{}` |", paths.join(", "), flags[0].1);
        }
        text
    }

    #[test]
    fn the_page_lists_every_variable() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        const MARKS: [&str; 2] = ["<!-- variables -->\n\n", "\n<!-- end -->\n"];
        let page = std::fs::read_to_string(PAGE).expect(PAGE);
        let (head, rest) = page.split_once(MARKS[0]).expect(MARKS[0]);
        let (found, tail) = rest.split_once(MARKS[1]).expect(MARKS[1]);
        let table = table();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let page = [head, MARKS[0], &table, MARKS[1], tail].concat();
            std::fs::write(PAGE, page).expect(PAGE);
            return;
        }
        let cure = "docs/environment.md is out of date: run this test with UPDATE_GOLDEN=1";
        assert_eq!(found, table, "{cure}");
    }
}
