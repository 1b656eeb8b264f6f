//! Checks the conformance files: each id is unique in its file, so that a case can be cited, and
//! `count` is correct. The case loader checks the other fields.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{TextFile, Violation};

pub(super) fn check_cases(file: &TextFile) -> Vec<Violation> {
    if !file.path.starts_with("conformance/cases/") || !file.path.ends_with(".json") {
        return Vec::new();
    }
    let value: Value = match serde_json::from_str(&file.text) {
        Ok(value) => value,
        Err(error) => {
            let what = format!("not JSON: {error}");
            return vec![file.violation(error.line().max(1), what, "correct the file's syntax")];
        }
    };
    let Some(cases) = value.get("cases").and_then(Value::as_array) else {
        let cure = "give the file an array `cases`";
        return vec![file.violation(1, "the file has no list `cases`", cure)];
    };
    let mut found = check_ids(file, cases);
    found.extend(check_count(file, value.get("count"), cases.len()));
    found
}

fn check_ids(file: &TextFile, cases: &[Value]) -> Vec<Violation> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let Some(id) = case.get("id").and_then(Value::as_str) else {
            let what = format!("case number {} has no id", index + 1);
            found.push(file.violation(1, what, "give it a unique `id`"));
            continue;
        };
        if !seen.insert(id) {
            let what = format!("the id `{id}` is used twice");
            let line = last_line_of_id(file, id);
            found.push(file.violation(line, what, "rename the later case"));
        }
    }
    found
}

fn check_count(file: &TextFile, count: Option<&Value>, cases: usize) -> Option<Violation> {
    let declared = count.and_then(Value::as_u64);
    (declared != u64::try_from(cases).ok()).then(|| {
        let at = file.lines().find(|(_, line)| line.contains("\"count\""));
        let declared = declared.map_or_else(|| "missing".to_owned(), |count| count.to_string());
        file.violation(
            at.map_or(1, |(number, _)| number),
            format!("`count` is {declared}, but the file has {cases} cases"),
            "correct `count`, or restore the missing case",
        )
    })
}

fn last_line_of_id(file: &TextFile, id: &str) -> usize {
    let quoted = format!("\"{id}\"");
    let named = |line: &str| line.contains("\"id\"") && line.contains(&quoted);
    let lines = file.lines().filter(|(_, line)| named(line));
    lines.last().map_or(1, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, places};
    use super::*;

    fn check(text: &str) -> Vec<String> {
        places(&check_cases(&file("conformance/cases/x.json", text)))
    }

    #[test]
    fn a_valid_file_has_no_violations() {
        assert!(check(r#"{"count": 2, "cases": [{"id": "a"}, {"id": "b"}]}"#).is_empty());
        assert!(check(r#"{"count": 0, "cases": []}"#).is_empty());
    }

    #[test]
    fn a_repeated_id_is_found_at_its_second_line() {
        let text = "{\"count\": 2, \"cases\": [\n{\"id\": \"a\"},\n{\"id\": \"a\"}]}";
        let expected = "conformance/cases/x.json:3: the id `a` is used twice";
        assert_eq!(check(text), [expected]);
    }

    #[test]
    fn wrong_and_missing_counts_are_found() {
        assert_eq!(
            check("{\n\"count\": 3, \"cases\": [{\"id\": \"a\"}]}"),
            ["conformance/cases/x.json:2: `count` is 3, but the file has 1 cases"]
        );
        assert_eq!(
            check("{\"cases\": [{\"id\": \"a\"}]}"),
            ["conformance/cases/x.json:1: `count` is missing, but the file has 1 cases"]
        );
    }

    #[test]
    fn files_without_a_list_of_cases_are_found() {
        for text in ["", "{\"count\": 0}", "{\"count\": 1, \"cases\": [{\"id\": 7}]}"] {
            assert_eq!(check(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn other_files_are_not_checked() {
        assert!(check_cases(&file("conformance/cases/README.md", "text")).is_empty());
        assert!(check_cases(&file("other/x.json", "text")).is_empty());
    }
}
