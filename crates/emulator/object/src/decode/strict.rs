//! The errors of strict field validation, in the order of the request body.
//!
//! A parsed value is a sorted map without that order, so the body is parsed again, but only for
//! requests that are rejected or get a warning.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

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
    let finder = Finder {
        unknown: unknown.iter().map(String::as_str).collect(),
        duplicates: duplicates.iter().map(String::as_str).collect(),
        found: RefCell::default(),
    };
    let mut source = serde_json::Deserializer::from_slice(body);
    let walk = Walk { path: &Path::ROOT, finder: &finder };
    // Paths that were cut cannot be found in the body.
    let cut = unknown.iter().chain(duplicates).any(|path| path.len() + 4 > LONGEST_NAMED);
    let mut found = match walk.deserialize(&mut source) {
        Ok(()) if !cut => finder.found.into_inner(),
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

struct Finder<'a> {
    unknown: BTreeSet<&'a str>,
    duplicates: BTreeSet<&'a str>,
    found: RefCell<Vec<String>>,
}

#[derive(Clone, Copy)]
struct Walk<'a> {
    path: &'a Path<'a>,
    finder: &'a Finder<'a>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            let path = self.path.down(Step::Index(index));
            if items.next_element_seed(Walk { path: &path, finder: self.finder })?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = self.path.down(Step::Key(&key));
            let place = if path.is_long() { String::new() } else { path.to_string() };
            if self.finder.unknown.contains(place.as_str()) {
                self.finder.found.borrow_mut().push(unknown_field(&place));
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            if seen.contains(&key) && self.finder.duplicates.contains(place.as_str()) {
                self.finder.found.borrow_mut().push(duplicate_field(&place));
            }
            entries.next_value_seed(Walk { path: &path, finder: self.finder })?;
            seen.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complains_in_the_order_of_the_text() {
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
