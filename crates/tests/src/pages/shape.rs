//! The shape of a line of output: what stays the same from run to run.
//!
//! Numbers, ages, generated names and the width of columns may differ. Zero keeps its meaning: a 0 in
//! a page matches only 0, and another number matches only numbers other than 0, so that a traffic
//! matrix is compared by where traffic goes. Durations are measurements and match always.

/// Shapes of lines, without empty ones at the end.
pub fn of_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut shapes: Vec<String> = lines.map(of_line).collect();
    while shapes.last().is_some_and(String::is_empty) {
        shapes.pop();
    }
    shapes
}

fn of_line(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(of_word).collect();
    let mut shape = words.join(" ");
    // A unit after a space: `0.0 ms` and `3 ms` are both measurements.
    for unit in ["ms", "s", "us", "min"] {
        for end in ["", ",", ";", ")", "."] {
            let (zero, word) = (format!("0 {unit}{end}"), format!("# {unit}{end}"));
            let padded = format!(" {shape} ").replace(&format!(" {zero} "), &format!(" {word} "));
            shape = padded.trim().to_owned();
        }
    }
    shape
}

fn of_word(word: &str) -> String {
    if !word.is_empty() && word.chars().all(|c| "-─═".contains(c)) {
        return "-".to_owned();
    }
    let bare = word.trim_matches(['"', '\'', '(', ')', ',', ';', ':']);
    let masked = if is_duration(bare) || is_timestamp(bare) {
        "<time>".to_owned()
    } else if let Some(stem) = generated_stem(bare) {
        format!("{stem}-<hash>")
    } else {
        numbers(bare)
    };
    if bare.is_empty() { word.to_owned() } else { word.replacen(bare, &masked, 1) }
}

/// Whether a word is a duration: `5s`, `3m4s`, `1.5ms`.
fn is_duration(word: &str) -> bool {
    let units = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    word.starts_with(|c: char| c.is_ascii_digit())
        && ["s", "ms", "us", "µs", "m", "h", "d"].contains(&units)
        || crate::kubectl::is_age(word)
}

/// Whether a word is a time as log lines have it: `2026-11-18T21:25:56.169698Z`.
fn is_timestamp(word: &str) -> bool {
    word.get(10..11) == Some("T") && word.ends_with('Z') && word.starts_with(char::is_numeric)
}

/// What comes before the generated parts of a Pod's name: `web` of `web-6b7f9c5d48-x2xkz`.
fn generated_stem(word: &str) -> Option<&str> {
    let (rest, random) = word.rsplit_once('-')?;
    let generated = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if random.len() != 5 || !generated(random) {
        return None;
    }
    let (stem, hash) = rest.rsplit_once('-')?;
    let is_hash = (8..=10).contains(&hash.len()) && generated(hash);
    (is_hash && hash.chars().any(|c| c.is_ascii_digit())).then_some(stem)
}

/// A word with its numbers masked. The digits of names such as `node-a1` stay.
fn numbers(word: &str) -> String {
    let mut shape = String::new();
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let in_name = shape.ends_with(|c: char| c.is_ascii_alphanumeric());
        if !c.is_ascii_digit() || in_name {
            shape.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number = rest[..end].trim_end_matches('.');
        let zero = number.chars().all(|c| c == '0' || c == '.');
        shape.push_str(if zero { "0" } else { "#" });
        rest = &rest[number.len()..];
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ages_names_and_widths_are_masked() {
        for (a, b) in [
            ("zone-a   120    0  0.0%", "zone-a 7 0 0%"),
            (
                "web-6b7f9c5d48-x2xkz  1/1  Running  0  3m4s",
                "web-7d4b9f6c66-abcde 1/1 Running 0 12s",
            ),
            ("p50 / p90: 0.1 / 12.25 ms", "p50 / p90: 3 / 1 ms"),
            ("up after 0.6 s", "up after 0 s"),
            ("server https://127.0.0.1:41233", "server https://127.0.0.1:6443"),
            ("------  ---", "- --"),
            ("2026-11-18T21:25:56.169698Z  INFO", "2027-01-02T03:04:05.6Z INFO"),
        ] {
            assert_eq!(of_line(a), of_line(b));
        }
    }

    #[test]
    fn zero_text_and_names_of_nodes_count() {
        for (a, b) in [
            ("3 failed", "0 failed"),
            ("zone-a 0", "zone-a 5"),
            ("node-a1", "node-a2"),
            ("ready", "not ready"),
            ("web-tier-nginx", "web-tier-envoy"),
        ] {
            assert_ne!(of_line(a), of_line(b));
        }
    }
}
