//! Go-style flags: `--name=value`, `--name value`, `--name` for a switch. Pure.

/// The remaining arguments of a built-in image.
#[derive(Clone, Debug)]
pub(super) struct Flags(Vec<String>);

impl Flags {
    pub(super) fn new(arguments: &[String]) -> Self {
        Self(arguments.to_owned())
    }

    /// Takes a flag's value; the last one wins.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let mut found = None;
        let mut at = 0;
        while at < self.0.len() {
            let Some(word) = flag(&self.0[at]) else {
                at += 1;
                continue;
            };
            if word == name && at + 1 < self.0.len() {
                found = Some(self.0.remove(at + 1));
                self.0.remove(at);
            } else if let Some(value) = word.strip_prefix(name).and_then(|it| it.strip_prefix('='))
            {
                found = Some(value.to_owned());
                self.0.remove(at);
            } else {
                at += 1;
            }
        }
        found
    }

    /// Takes a number.
    pub(super) fn number(&mut self, name: &str, usual: i64) -> Result<i64, String> {
        match self.text(name) {
            None => Ok(usual),
            Some(text) => text.parse().map_err(|_| format!("--{name} {text:?}: expected a number")),
        }
    }

    /// Takes a switch: alone, or with `=true` or `=false`.
    pub(super) fn switch(&mut self, name: &str) -> Option<bool> {
        let mut found = None;
        self.0.retain(|word| {
            let value = match flag(word) {
                Some(word) if word == name => Some(true),
                Some(word) => word
                    .strip_prefix(name)
                    .and_then(|it| it.strip_prefix('='))
                    .map(|it| it != "false"),
                None => None,
            };
            found = value.or(found);
            value.is_none()
        });
        found
    }

    /// The remaining words; an error for an unknown flag.
    pub(super) fn rest(self) -> Result<Vec<String>, String> {
        match self.0.iter().find(|word| flag(word).is_some()) {
            Some(unknown) => Err(format!("unknown flag: {unknown}")),
            None => Ok(self.0),
        }
    }
}

fn flag(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    (!name.is_empty()).then_some(name)
}

/// Parses a Go duration (`300ms`, `5s`, `1m30s`) or seconds.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    let expected = || format!("{text:?}: expected a duration such as 5s");
    if let Ok(seconds) = text.parse() {
        return Ok(std::time::Duration::from_secs(seconds));
    }
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    parsed.try_into().map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Flags {
        Flags::new(&words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn go_flag_syntax_is_parsed() {
        let mut given = flags(&["--port=1", "host:80", "-port", "2", "--tcp", "--http=false"]);
        assert_eq!(given.number("port", 9), Ok(2));
        assert_eq!(given.switch("tcp"), Some(true));
        assert_eq!(given.switch("http"), Some(false));
        assert_eq!(given.switch("udp"), None);
        assert_eq!(given.rest().unwrap(), ["host:80"]);
    }

    #[test]
    fn unknown_flags_are_named() {
        assert!(flags(&["--nonsense=1"]).rest().unwrap_err().contains("--nonsense"));
        assert!(flags(&["--port=x"]).number("port", 1).is_err());
    }

    #[test]
    fn go_durations_are_parsed() {
        for (text, millis) in [("5s", 5000), ("300ms", 300), ("1m30s", 90_000), ("7", 7000)] {
            assert_eq!(duration(text).unwrap().as_millis(), millis, "{text}");
        }
        assert!(duration("soon").is_err());
    }
}
