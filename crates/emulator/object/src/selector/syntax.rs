//! What a label key and a label value may look like, with the complaints as Kubernetes words them.
//!
//! Deliberately no regular expressions: these checks run for every selector and every label.

const KEY_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const SUBDOMAIN_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WORD_RULE: &str = "consist of alphanumeric characters, '-', '_' or '.', and must start and \
                         end with an alphanumeric character";
const LABEL_MOST: usize = 63;
const SUBDOMAIN_MOST: usize = 253;

/// Everything that is wrong with a label key; nothing for a good one.
pub fn label_key_problems(key: &str) -> Vec<String> {
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((prefix, name)) if !name.contains('/') => (Some(prefix), name),
        Some(_) => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' \
                 (e.g. 'example.com/MyName')",
                key_rule()
            )];
        }
    };
    let mut problems = prefix.map(prefix_problems).unwrap_or_default();
    if name.is_empty() {
        problems.push("name part must be non-empty".into());
    } else if name.len() > LABEL_MOST {
        problems.push(format!("name part {}", too_long(LABEL_MOST)));
    }
    if !is_word(name) {
        problems.push(format!("name part {}", key_rule()));
    }
    problems
}

/// Everything that is wrong with a label value; nothing for a good one. Empty is good.
pub fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > LABEL_MOST {
        problems.push(too_long(LABEL_MOST));
    }
    if !value.is_empty() && !is_word(value) {
        problems.push(format!(
            "a valid label must be an empty string or {WORD_RULE} (e.g. 'MyValue',  or \
             'my_value',  or '12345', regex used for validation is '({KEY_FORMAT})?')"
        ));
    }
    problems
}

fn prefix_problems(prefix: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if prefix.is_empty() {
        problems.push("prefix part must be non-empty".into());
        return problems;
    }
    if prefix.len() > SUBDOMAIN_MOST {
        problems.push(format!("prefix part {}", too_long(SUBDOMAIN_MOST)));
    }
    if !is_subdomain(prefix) {
        problems.push(format!(
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is '{SUBDOMAIN_FORMAT}')"
        ));
    }
    problems
}

fn key_rule() -> String {
    format!(
        "must {WORD_RULE} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
         is '{KEY_FORMAT}')"
    )
}

fn too_long(most: usize) -> String {
    format!("must be no more than {most} bytes")
}

/// Letters, digits, `-`, `_`, `.`; a letter or digit at both ends.
fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().next_back()) else {
        return false;
    };
    first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && text.bytes().all(inner)
}

fn is_subdomain(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.split('.').all(|part| {
        part.bytes().next().is_some_and(lower)
            && part.bytes().next_back().is_some_and(lower)
            && part.bytes().all(|b| lower(b) || b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for good in ["a", "a.b-c_D", "kubernetes.io/name", "1", "a-b.c/X"] {
            assert!(label_key_problems(good).is_empty(), "{good}");
        }
        for (bad, problems) in
            [("", 2), ("-a", 1), ("a/b/c", 1), ("/a", 1), ("A.b/c", 1), ("a./c", 1), ("é", 1)]
        {
            assert_eq!(label_key_problems(bad).len(), problems, "{bad}");
        }
        let long = "a".repeat(64);
        assert_eq!(label_key_problems(&long), ["name part must be no more than 63 bytes"]);
        assert!(label_key_problems(&long[1..]).is_empty());
    }

    #[test]
    fn values() {
        assert!(label_value_problems("").is_empty());
        assert!(label_value_problems("a_B.1").is_empty());
        assert_eq!(label_value_problems(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(
            label_value_problems("a b"),
            ["a valid label must be an empty string or consist of alphanumeric characters, '-', \
              '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
              or 'my_value',  or '12345', regex used for validation is \
              '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"]
        );
    }

    #[test]
    fn the_text_of_a_bad_key_is_the_recorded_one() {
        assert_eq!(
            label_key_problems(""),
            [
                "name part must be non-empty",
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
                 start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
                 '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
    }
}
