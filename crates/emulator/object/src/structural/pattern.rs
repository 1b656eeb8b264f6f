//! Regular expressions of `pattern`, compiled once.
//!
//! Kubernetes uses Go's RE2. The `regex` crate has almost the same syntax; `translate` converts the
//! differences that occur in practice (ASCII classes, brackets inside brackets). Compiled patterns
//! are cached, because compiling one takes longer than a whole write.

use std::collections::BTreeMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use regex::{Regex, RegexBuilder};

/// The size of the cache: more than the CRDs of a cluster have. When it is full, it is cleared, so
/// that memory stays limited.
const KEPT: usize = 1024;

/// The maximum size of a compiled pattern in bytes, so that a pattern cannot exhaust memory.
const SIZE_LIMIT: usize = 4 << 20;

type Compiled = Option<Regex>;

static CACHE: LazyLock<RwLock<BTreeMap<Box<str>, Compiled>>> = LazyLock::new(RwLock::default);

/// Whether a text matches; `None` if the pattern is not valid.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    // The map contains only finished patterns, so a panic cannot leave a partial update.
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

/// Why a pattern is not valid, in one line.
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

/// Converts a Go pattern to the syntax of the `regex` crate.
fn translate(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                // In Go these match ASCII only. A class is also valid inside a class.
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
                // A closing bracket directly after the opening one is literal.
                text.extend(chars.next_if_eq(&'^'));
                if chars.next_if_eq(&']').is_some() {
                    text.push_str(r"\]");
                }
            }
            ']' => {
                in_class = false;
                text.push(']');
            }
            // Inside a class Go allows only named classes.
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
    fn patterns_match_like_go() {
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
