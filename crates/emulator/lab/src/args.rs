//! Command lines with added arguments. Pure.
//!
//! Feature gates are merged by gate: a process keeps those that the lab sets. Any other flag that
//! the process has already is replaced, because most flags may be given only once.

const GATES: &str = "--feature-gates";

/// A flag with its value, or a word that is not a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arg {
    /// Empty for a word that is not a flag.
    flag: String,
    value: Option<String>,
}

/// The arguments of a process with added ones.
pub(crate) fn merge(own: &[String], added: &[String]) -> Vec<String> {
    let mut args = read(own);
    for arg in read(added) {
        match args.iter_mut().find(|known| !arg.flag.is_empty() && known.flag == arg.flag) {
            Some(known) if arg.flag == GATES => {
                known.value = Some(merge_gates(&known.value, &arg.value));
            }
            Some(known) => *known = arg,
            None => args.push(arg),
        }
    }
    args.into_iter().flat_map(write).collect()
}

fn read(words: &[String]) -> Vec<Arg> {
    let mut args: Vec<Arg> = Vec::new();
    for word in words {
        let waits = |last: &&mut Arg| !last.flag.is_empty() && last.value.is_none();
        if word.starts_with("--") {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            args.push(Arg { flag: flag.to_owned(), value });
        } else if let Some(last) = args.last_mut().filter(|last| !is_switch(word) && waits(last)) {
            last.value = Some(word.clone());
        } else {
            args.push(Arg { flag: String::new(), value: Some(word.clone()) });
        }
    }
    args
}

/// Whether it is a flag of one letter. Such a word is never the value of the flag before it; a
/// single dash and a negative number are no flags.
fn is_switch(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn write(arg: Arg) -> Vec<String> {
    match arg {
        Arg { flag, value } if flag.is_empty() => value.into_iter().collect(),
        Arg { flag, value: None } => vec![flag],
        Arg { flag, value: Some(value) } => vec![format!("{flag}={value}")],
    }
}

/// Of two settings of one gate the second one wins.
fn merge_gates(own: &Option<String>, added: &Option<String>) -> String {
    let mut gates: Vec<&str> = Vec::new();
    let entries = [own, added].into_iter().flatten().flat_map(|text| text.split(','));
    for entry in entries.filter(|entry| !entry.is_empty()) {
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        match gates.iter_mut().find(|known| name(known) == name(entry)) {
            Some(known) => *known = entry,
            None => gates.push(entry),
        }
    }
    gates.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_merged_and_other_flags_replaced() {
        let own = "controller --mode replace --leader-elect=false --feature-gates PodLocator=true,";
        let mode = "controller --mode=replace --leader-elect=false --feature-gates=";
        for (added, wanted) in [
            ("", format!("{mode}PodLocator=true,")),
            ("--feature-gates=Topology=false", format!("{mode}PodLocator=true,Topology=false")),
            (
                "--feature-gates PodLocator=false,B=true -v",
                format!("{mode}PodLocator=false,B=true -v"),
            ),
            ("--bare -v 4", format!("{mode}PodLocator=true, --bare -v 4")),
            ("--share -1", format!("{mode}PodLocator=true, --share=-1")),
            (
                "--mode=observe --bare",
                "controller --mode=observe --leader-elect=false --feature-gates=PodLocator=true, \
                 --bare"
                    .to_owned(),
            ),
        ] {
            let words = |text: &str| -> Vec<String> {
                text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            assert_eq!(merge(&words(own), &words(added)).join(" "), wanted, "{added}");
        }
    }
}
