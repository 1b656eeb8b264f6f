//! The errors of strict field validation, in the order of the request body.
//!
//! A parsed value is a sorted map without that order, so the body is parsed again, but only for
//! requests that are rejected or get a warning.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::DeserializeSeed;

use super::json::ValueSeed;
use super::path::{LONGEST_NAMED, MOST_NAMED, Path, Step};

/// One error for each unknown or duplicate field, in the order of a JSON body: `unknown field
/// "spec.bogus"`, `duplicate field "spec.type"`. `unknown` is the result of [`super::conform`],
/// `duplicates` that of the parser; fields below an unknown field are not reported. If the body is
/// not JSON (YAML is converted with sorted keys), the unknown fields are first. Fields that the
/// body does not contain at their path (a patch adds them there) are last.
pub fn strict_errors(body: &[u8], unknown: &[String], duplicates: &[String]) -> Vec<String> {
    if unknown.is_empty() && duplicates.is_empty() {
        return Vec::new();
    }
    let unknown_paths: BTreeSet<&str> = unknown.iter().map(String::as_str).collect();
    let duplicate_paths: BTreeSet<&str> = duplicates.iter().map(String::as_str).collect();
    let found = RefCell::new(Vec::new());
    let visit = |parent: &Path<'_>, key: &str, repeated: bool| {
        let path = parent.down(Step::Key(key));
        let place = if path.is_long() { String::new() } else { path.to_string() };
        let is_unknown = unknown_paths.contains(place.as_str());
        if is_unknown {
            found.borrow_mut().push(unknown_field(&place));
        } else if repeated && duplicate_paths.contains(place.as_str()) {
            found.borrow_mut().push(duplicate_field(&place));
        }
        !is_unknown
    };
    let mut source = serde_json::Deserializer::from_slice(body);
    let walked = ValueSeed { path: &Path::ROOT, visit: &visit }.deserialize(&mut source);
    // Paths that were cut cannot be found in the body.
    let cut = unknown.iter().chain(duplicates).any(|path| path.len() + 4 > LONGEST_NAMED);
    let mut found = match walked {
        Ok(_) if !cut => found.into_inner(),
        _ => unsorted(unknown, duplicates),
    };
    found.extend(unknown.iter().map(|path| unknown_field(path)));
    let mut seen = BTreeSet::new();
    found.retain(|one| seen.insert(one.clone()));
    found.truncate(MOST_NAMED);
    found
}

fn unsorted(unknown: &[String], duplicates: &[String]) -> Vec<String> {
    let unknown = unknown.iter().map(|path| unknown_field(path));
    unknown.chain(duplicates.iter().map(|path| duplicate_field(path))).collect()
}

fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_order_of_the_text() {
        let body = br#"{"metadata":{"name":"x"},"spec":{"bogus":{"a":1,"a":2},"type":"A","type":"B","ports":[{"port":80,"nope":true}]}}"#;
        let unknown = ["spec.bogus".to_owned(), "spec.ports[0].nope".to_owned()];
        let duplicates = ["spec.bogus.a".to_owned(), "spec.type".to_owned()];
        assert_eq!(
            strict_errors(body, &unknown, &duplicates),
            [
                "unknown field \"spec.bogus\"",
                "duplicate field \"spec.type\"",
                "unknown field \"spec.ports[0].nope\"",
            ]
        );
        assert_eq!(strict_errors(b"a: b", &unknown, &[]).len(), 2);
        let patch = br#"[{"op":"add","path":"/spec/bogus","value":1}]"#;
        assert_eq!(
            strict_errors(patch, &unknown, &[]),
            ["unknown field \"spec.bogus\"", "unknown field \"spec.ports[0].nope\""]
        );
        assert!(strict_errors(body, &[], &[]).is_empty());
    }
}
