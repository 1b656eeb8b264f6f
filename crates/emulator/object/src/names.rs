//! Validates names: DNS labels and subdomains, label keys and values, port names.
//!
//! Each function returns Kubernetes' error messages; an empty list means that the name is valid.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters \
    or '-', start with an alphabetic character, and end with an alphanumeric character";
const KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start \
    and end with an alphanumeric character";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character";

const LABEL_MAX: usize = 63;
/// The maximum length of a subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

/// A DNS label (RFC 1123): `my-name`, `123-abc`.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    too_long(&mut wrong, value, LABEL_MAX, "characters");
    if !is_label(value) {
        wrong.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            rule(LABEL_RULE, &["my-name", "123-abc"], LABEL)
        });
    }
    wrong
}

/// A DNS subdomain (RFC 1123): `example.com`. The name of most objects.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    subdomain(value, "characters")
}

/// A DNS label that starts with a letter (RFC 1035): `my-name`.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    too_long(&mut wrong, value, LABEL_MAX, "characters");
    if !(is_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        wrong.push(rule(LABEL_1035_RULE, &["my-name", "abc-123"], LABEL_1035));
    }
    wrong
}

/// A label key: `app`, `example.com/app`.
pub fn qualified_name(value: &str) -> Vec<String> {
    const EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
    let mut wrong = Vec::new();
    let mut parts = value.split('/');
    let name = match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
        (name, None, _) => name,
        (prefix, Some(name), None) => {
            let complaints = if prefix.is_empty() {
                vec!["must be non-empty".to_owned()]
            } else {
                subdomain(prefix, "bytes")
            };
            wrong.extend(complaints.into_iter().map(|text| format!("prefix part {text}")));
            name
        }
        _ => {
            let text = rule(KEY_RULE, &EXAMPLES, KEY);
            let hint = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {text} {hint}")];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        wrong.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_key(name) {
        wrong.push(format!("name part {}", rule(KEY_RULE, &EXAMPLES, KEY)));
    }
    wrong
}

/// A label's value.
pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    too_long(&mut wrong, value, LABEL_MAX, "bytes");
    if !value.is_empty() && !is_key(value) {
        wrong.push(rule(VALUE_RULE, &["MyValue", "my_value", "12345"], VALUE));
    }
    wrong
}

/// A port's name, an IANA service name: `http`, at most 15 characters.
pub fn port_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    too_long(&mut wrong, value, 15, "characters");
    let mut say = |bad: bool, text: &str| {
        if bad {
            wrong.push(text.to_owned());
        }
    };
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    say(
        value.is_empty() || !value.bytes().all(plain),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    let letter = value.bytes().any(|c| c.is_ascii_lowercase());
    say(!letter, "must contain at least one letter (a-z)");
    say(value.contains("--"), "must not contain consecutive hyphens");
    let edge = value.starts_with('-') || value.ends_with('-');
    say(edge, "must not begin or end with a hyphen");
    wrong
}

/// A port's number.
pub fn port_number(value: i64) -> Vec<String> {
    if (1..=65535).contains(&value) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

/// Changes a `generateName` so that it can be validated as a name: Kubernetes appends a suffix, so
/// a trailing dash is valid.
pub fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        // Kubernetes also drops the character before the dash.
        Some(rest) if !rest.is_empty() => {
            let mut name: String = rest.to_owned();
            name.pop();
            name.push('a');
            name
        }
        _ => prefix.to_owned(),
    }
}

fn subdomain(value: &str, unit: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    too_long(&mut wrong, value, SUBDOMAIN_MAX, unit);
    if !is_subdomain(value) {
        wrong.push(rule(SUBDOMAIN_RULE, &["example.com"], SUBDOMAIN));
    }
    wrong
}

/// Older messages say "characters", newer ones "bytes"; both mean bytes.
fn too_long(wrong: &mut Vec<String>, value: &str, most: usize, unit: &str) {
    if value.len() > most {
        wrong.push(format!("must be no more than {most} {unit}"));
    }
}

fn rule(text: &str, examples: &[&str], regex: &str) -> String {
    let examples: Vec<String> = examples.iter().map(|one| format!("'{one}', ")).collect();
    format!("{text} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

fn is_label(value: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    edges_and_middle(value, plain, |c| plain(c) || c == b'-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_key(value: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric();
    edges_and_middle(value, plain, |c| plain(c) || matches!(c, b'-' | b'_' | b'.'))
}

fn edges_and_middle(value: &str, edge: impl Fn(u8) -> bool, middle: impl Fn(u8) -> bool) -> bool {
    match value.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, rest @ .., last] => edge(*first) && edge(*last) && rest.iter().all(|c| middle(*c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted() {
        assert!(dns1123_label("1-a").is_empty());
        assert!(dns1123_subdomain("a.b-c.1").is_empty());
        assert!(dns1035_label("a-1").is_empty());
        assert!(qualified_name("example.com/My_Name.1").is_empty());
        assert!(label_value("").is_empty());
        assert!(label_value("My_Value").is_empty());
        assert!(port_name("http-2").is_empty());
        assert!(port_number(65535).is_empty());
    }

    #[test]
    fn errors_of_invalid_names_match_kubernetes() {
        let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
            or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
            '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        assert_eq!(dns1123_label("Bad_Name"), [label]);
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        let long = "x".repeat(64);
        assert_eq!(dns1123_label(&long), ["must be no more than 63 characters"]);
        assert_eq!(label_value(&long), ["must be no more than 63 bytes"]);
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("a/").len(), 2);
        assert_eq!(qualified_name("a/b/c").len(), 1);
        assert_eq!(port_name("-1--").len(), 3);
        assert_eq!(port_name("").len(), 2);
        assert_eq!(dns1035_label("1a").len(), 1);
    }

    #[test]
    fn label_keys_and_values_are_validated() {
        for good in ["a", "a.b-c_D", "kubernetes.io/name", "1", "a-b.c/X"] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        for (bad, problems) in
            [("", 2), ("-a", 1), ("a/b/c", 1), ("/a", 1), ("A.b/c", 1), ("a./c", 1), ("é", 1)]
        {
            assert_eq!(qualified_name(bad).len(), problems, "{bad}");
        }
        let long = "a".repeat(64);
        assert_eq!(qualified_name(&long), ["name part must be no more than 63 bytes"]);
        assert!(qualified_name(&long[1..]).is_empty());
        let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and \
            end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
            used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        assert_eq!(
            qualified_name(""),
            ["name part must be non-empty".to_owned(), format!("name part {rule}")]
        );
        assert_eq!(
            label_value("a b"),
            ["a valid label must be an empty string or consist of alphanumeric characters, '-', \
              '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
              or 'my_value',  or '12345', regex used for validation is \
              '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"]
        );
    }

    #[test]
    fn a_prefix_can_end_in_a_dash() {
        assert_eq!(mask_trailing_dash("web-"), "wea");
        assert_eq!(mask_trailing_dash("-"), "-");
        assert_eq!(mask_trailing_dash("é-"), "a");
    }
}
