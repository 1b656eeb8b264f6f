//! Checks the wording: sentences name the component that acts, and log lines can be searched.
//!
//! The list contains only words that hide an actor or a state. A reviewer judges the rest.

use super::{TextFile, Violation};

/// Words and phrases with a plainer alternative. They are assembled from halves, so that tidy does
/// not find them in this file.
const UNCLEAR: [&str; 12] = [
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
    concat!("every", "body"),
    concat!("who", "ever"),
    concat!("the", " like"),
    concat!("a", "sleep"),
    concat!("to", "ld"),
    concat!("sta", "nds"),
    concat!("given", " back"),
    concat!("cul", "prit"),
    concat!("mis", "hap"),
];

/// Exceptions, where such a word is a name: the file, the word and what has this name.
const NAMES: [(&str, &str, &str); 3] = [
    ("CHANGELOG.md", concat!("no", "body"), "old values of a metric label"),
    ("xtask/src/rootless.rs", concat!("no", "body"), "the user with the id 65534"),
    ("crates/tests/src/replay/engine.rs", concat!("no", "body"), "a user in the recordings"),
];

/// Pages, sources, manifests and scripts; case files and recorded exchanges have other authors.
const READABLE: [&str; 4] = [".md", ".rs", ".toml", ".ci/run"];

/// The macros of `tracing`.
const LOG_MACROS: [&str; 5] = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];

/// A word that hides who acts, in a page, a comment, a string or a name.
pub(super) fn check_words(file: &TextFile) -> Vec<Violation> {
    let readable = READABLE.iter().any(|end| file.path.ends_with(end));
    if !readable || file.path.starts_with("conformance/") {
        return Vec::new();
    }
    let cure = "name the component or the state: \"The proxy retries after 30 s\"";
    let is_name =
        |word: &str| NAMES.iter().any(|(path, name, _)| *path == file.path && *name == word);
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        // Names of tests are sentences, too.
        let line = line.to_lowercase().replace('_', " ");
        for word in UNCLEAR.iter().filter(|word| has_word(&line, word) && !is_name(word)) {
            found.push(file.violation(number, format!("unclear word: `{word}`"), cure));
        }
    }
    found
}

/// Whether a line has this word, and not as a part of another one.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        !is_letter(line[..at].chars().next_back()) && !is_letter(after.chars().next())
    })
}

/// A log line whose message contains a value: such a line cannot be searched by its message.
pub(super) fn check_log_messages(file: &TextFile) -> Vec<Violation> {
    let source = file.path.starts_with("crates/") && file.path.contains("/src/");
    if !source || !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let cure = "make the value a field: `warn!(error = %error, \"nftables sync failed\")`";
    let calls = LOG_MACROS.iter().flat_map(|name| file.text.match_indices(name));
    let starts = calls.map(|(at, name)| (at, at + name.len()));
    let is_macro =
        |at: usize| !file.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let of_values = starts.filter(|(at, from)| is_macro(*at) && formats(&file.text[*from..]));
    let line = |at: usize| 1 + file.text[..at].matches('\n').count();
    of_values
        .map(|(at, _)| file.violation(line(at), "a log message with a value in it", cure))
        .collect()
}

/// Whether a string literal among these arguments of a macro has a `{`. Arguments of a call within
/// them are values of fields.
fn formats(arguments: &str) -> bool {
    let mut depth = 0_u32;
    let mut in_string = false;
    let mut chars = arguments.chars();
    while let Some(c) = chars.next() {
        match (in_string, c) {
            (true, '\\') => _ = chars.next(),
            (_, '"') => in_string = !in_string,
            (true, '{') if depth == 0 => return true,
            (false, '(' | '[' | '{') => depth += 1,
            (false, ')' | ']' | '}') if depth == 0 => return false,
            (false, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, places};
    use super::*;

    #[test]
    fn every_unclear_word_is_found_in_pages_comments_strings_and_names() {
        for word in UNCLEAR {
            for (path, text) in [
                ("docs/proxy.md", format!("Fine.\nUntil {word}, it waits.\n")),
                ("crates/cli/src/proxy.rs", format!("fn a() {{}}\n/// For {word}.\n")),
                ("crates/cli/src/main.rs", format!("\nlet a = \"{word}\";")),
                (
                    "crates/tests/tests/a.rs",
                    format!("\nfn {}_waits() {{}}", word.replace(' ', "_")),
                ),
                ("Cargo.toml", format!("[a]\n# {word}\n")),
            ] {
                let found = check_words(&file(path, &text));
                assert_eq!(places(&found), [format!("{path}:2: unclear word: `{word}`")]);
            }
        }
    }

    #[test]
    fn parts_of_words_names_and_case_files_are_ignored() {
        let word = UNCLEAR[0];
        for (path, text) in [
            ("docs/a.md", format!("{word}s x{word}\n")),
            (NAMES[0].0, format!("{word}\n")),
            ("conformance/cases/README.md", format!("{word}\n")),
            ("crates/tests/data/transcripts/1.json", format!("{word}\n")),
        ] {
            assert_eq!(check_words(&file(path, &text)), [], "{path}");
        }
    }

    #[test]
    fn a_log_message_is_constant() {
        let path = "crates/routing/proxy/src/run.rs";
        for text in
            ["\nwarn!(\"{error}\");", "\ntracing::info!(\n    a = %f(b),\n    \"is {a}\"\n);"]
        {
            let found = check_log_messages(&file(path, text));
            assert_eq!(places(&found), [format!("{path}:2: a log message with a value in it")]);
        }
        for text in [
            "warn!(error = %error, \"sync failed\"); format!(\"{a}\")",
            "info!(a = ?A { b }, \"a \\\" b\"); let b = \"{}\";",
            "warn!(error = %format_args!(\"{error:#}\"), \"sync failed\")",
            "my_info!(\"{a}\")",
        ] {
            assert_eq!(check_log_messages(&file(path, text)), [], "{text}");
        }
        assert_eq!(check_log_messages(&file("crates/tests/tests/a.rs", "info!(\"{a}\")")), []);
    }
}
