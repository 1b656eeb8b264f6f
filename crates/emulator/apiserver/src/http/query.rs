//! Query parameters. Unknown ones are ignored; a query may be empty or begin with `&`.

use crate::status::ApiError;

#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        Self(pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
    }

    /// The first value of a parameter; an empty one is as good as none.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// As Kubernetes reads booleans: anything but `0` and `false` is true.
    pub(crate) fn flag(&self, key: &str) -> bool {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.is_some_and(|(_, value)| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let refused =
            |why| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"));
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) if text.trim_start_matches(['-', '+']).bytes().all(|b| b.is_ascii_digit()) => {
                Err(refused("value out of range"))
            }
            Err(_) => Err(refused("invalid syntax")),
        }
    }
}
