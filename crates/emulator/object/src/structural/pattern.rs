//! Regular expressions of `pattern`, compiled once.
//!
//! Kubernetes' are Go's RE2. The `regex` crate has almost the same syntax; `translate` bridges what
//! differs in practice (ASCII classes, brackets inside of brackets). Compiled ones are kept, because
//! compiling costs more than a whole write.

use std::collections::BTreeMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use regex::{Regex, RegexBuilder};

/// How many are kept. More than the patterns of the CRDs of a cluster; when there are still more,
/// all are forgotten, so that memory stays bounded.
const KEPT: usize = 1024;

/// How many bytes one may take when compiled: a pattern must not exhaust memory.
const SIZE_LIMIT: usize = 4 << 20;

type Compiled = Option<Regex>;

static CACHE: LazyLock<RwLock<BTreeMap<Box<str>, Compiled>>> = LazyLock::new(RwLock::default);

/// Whether a text matches; `None` if the pattern is not valid.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    // A panic elsewhere cannot leave a map of finished patterns in a bad state.
    let known = CACHE.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiled) = known.get(pattern) {
        return compiled.as_ref().map(|regex| regex.is_match(text));
    }
    drop(known);
    let compiled = compile(pattern).ok();
    let answer = compiled.as_ref().map(|regex| regex.is_match(text));
    let mut known = CACHE.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= KEPT {
        known.clear();
    }
    known.insert(pattern.into(), compiled);
    answer
}

/// What is wrong with a pattern, in one line.
pub(super) fn problem(pattern: &str) -> Option<String> {
    let error = compile(pattern).err()?;
    let text = match error {
        regex::Error::Syntax(text) => {
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
        other => other.to_string(),
    };
    Some(text)
}

fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translate(pattern)).size_limit(SIZE_LIMIT).build()
}

/// A pattern of Go in the syntax of the `regex` crate.
fn translate(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                // In Go these are ASCII only. A class works inside of a class too.
                Some('d') => text.push_str("[0-9]"),
                Some('D') => text.push_str("[^0-9]"),
                Some('w') => text.push_str("[0-9A-Za-z_]"),
                Some('W') => text.push_str("[^0-9A-Za-z_]"),
                Some('s') => text.push_str(r"[\t\n\f\r ]"),
                Some('S') => text.push_str(r"[^\t\n\f\r ]"),
                Some('b') => text.push_str(r"(?-u:\b)"),
                Some(angle @ ('<' | '>')) => text.push(angle),
                Some(other) => text.extend(['\\', other]),
                None => text.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                text.push('[');
                // A bracket that closes at once is meant literally.
                text.extend(chars.next_if_eq(&'^'));
                if chars.next_if_eq(&']').is_some() {
                    text.push_str(r"\]");
                }
            }
            ']' => {
                in_class = false;
                text.push(']');
            }
            // Go has no classes inside of classes but the named ones.
            '[' if chars.peek() == Some(&':') => {
                text.push('[');
                for inner in chars.by_ref() {
                    text.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_class => text.extend(['\\', c]),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_go_does() {
        assert_eq!(matches("^[a-z]+$", "abc"), Some(true));
        assert_eq!(matches("^[a-z]+$", "ABC"), Some(false));
        assert_eq!(matches("b", "abc"), Some(true));
        assert_eq!(matches("(", "abc"), None);
        assert_eq!(matches("(", "abc"), None);
        assert!(problem("(").unwrap().contains("unclosed group"));
        assert_eq!(problem(r"^\d{1,3}(\.\d{1,3}){3}$"), None);
        for (pattern, text, answer) in [
            (r"^\d+$", "\u{0664}", false),
            (r"^[\w.-]+$", "a_b-c.9", true),
            (r"^[\w.-]+$", "\u{e9}", false),
            (r"^[^\s]+$", "a b", false),
            (r"^[a[&~]+$", "[&~a", true),
            (r"^[]a]+$", "]a", true),
            (r"^[^]a]+$", "]", false),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"^a\/b\_\<$", "a/b_<", true),
            (r"^(?i)abc$", "ABC", true),
            (r"^\p{Lu}.$", "\u{c9}\u{e9}", true),
            (r"\bx\b", "a x b", true),
        ] {
            assert_eq!(matches(pattern, text), Some(answer), "{pattern} {text}");
        }
    }
}
