//! The form of a reply by the Accept header: objects, a Table, or metadata only.

use crate::status::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Objects as they are.
    Object,
    /// Objects as YAML.
    Yaml,
    /// Rows and columns.
    Table(MetaVersion),
    /// Metadata of one object.
    Partial(MetaVersion),
    /// Metadata of many objects.
    PartialList(MetaVersion),
}

/// The requested version of `meta.k8s.io` for a Table or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

struct Entry<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

pub(crate) struct Accept<'a>(Vec<Entry<'a>>);

pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media types of objects, in requests and replies.
pub(crate) const OBJECT_TYPES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

impl<'a> Accept<'a> {
    /// By q-value, then by position.
    pub(crate) fn parse(header: Option<&'a str>) -> Self {
        let text = header.filter(|text| !text.trim().is_empty()).unwrap_or("*/*");
        let mut entries: Vec<(f32, Entry<'a>)> = text.split(',').map(parse_entry).collect();
        entries.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        Self(entries.into_iter().map(|(_, entry)| entry).collect())
    }

    /// The form for objects. A client that prefers protobuf gets JSON, which all of them accept.
    pub(crate) fn form(&self) -> Result<Form, ApiError> {
        let mut known = false;
        for entry in &self.0 {
            let yaml = entry.media == "application/yaml";
            let known_entry = entry.is_known();
            known |= known_entry;
            match entry.get("as") {
                None if yaml => return Ok(Form::Yaml),
                None if known_entry && entry.media != PROTOBUF => return Ok(Form::Object),
                Some(form) if known_entry && !yaml => {
                    if let Some(form) = entry.meta_form(form) {
                        return Ok(form);
                    }
                }
                _ => {}
            }
        }
        if self.0.iter().any(|entry| entry.media == PROTOBUF) {
            return Ok(Form::Object);
        }
        Err(if known {
            unaccepted()
        } else {
            unavailable(&format!(
                "{OBJECT_TYPES}, application/json;stream=watch, {PROTOBUF};stream=watch"
            ))
        })
    }

    pub(crate) fn is_protobuf_only(&self) -> bool {
        self.0.iter().all(|entry| entry.media == PROTOBUF)
    }

    /// Whether aggregated discovery is wanted (`Ok(true)`), or the legacy documents.
    pub(crate) fn aggregated_discovery(&self) -> Result<bool, ApiError> {
        for entry in self.0.iter().filter(|entry| entry.is_known()) {
            match (entry.get("as"), entry.get("g"), entry.get("v")) {
                (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                    return Ok(true);
                }
                (None, _, _) => return Ok(false),
                _ => {}
            }
        }
        Err(if self.0.iter().any(|entry| entry.media.starts_with("application/json")) {
            unaccepted()
        } else {
            unavailable(OBJECT_TYPES)
        })
    }
}

fn unaccepted() -> ApiError {
    ApiError::not_acceptable(format!("only the following media types are accepted: {OBJECT_TYPES}"))
}

fn unavailable(list: &str) -> ApiError {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {list}");
    ApiError { details: Some(serde_json::json!({})), ..ApiError::not_acceptable(message) }
}

impl Entry<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    fn is_known(&self) -> bool {
        matches!(self.media, "application/json" | "application/*" | "*/*" | "application/yaml")
            || self.media == PROTOBUF
    }

    fn meta_form(&self, form: &str) -> Option<Form> {
        let version = match (self.get("g"), self.get("v")) {
            (Some("meta.k8s.io"), Some("v1")) => MetaVersion::V1,
            (Some("meta.k8s.io"), Some("v1beta1")) => MetaVersion::V1Beta1,
            _ => return None,
        };
        match form {
            "Table" => Some(Form::Table(version)),
            "PartialObjectMetadata" => Some(Form::Partial(version)),
            "PartialObjectMetadataList" => Some(Form::PartialList(version)),
            _ => None,
        }
    }
}

fn parse_entry(text: &str) -> (f32, Entry<'_>) {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
    let entry = Entry { media, parameters };
    let quality = entry.get("q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
    (quality, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_chosen_by_quality_then_position() {
        let table = Some(Form::Table(MetaVersion::V1));
        for (header, expected) in [
            ("application/xml,application/json;q=0.5", Some(Form::Object)),
            ("application/json;q=0.1,application/yaml", Some(Form::Yaml)),
            ("text/html", None),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", table),
            ("application/json;g=meta.k8s.io;as=Table;v=v1", table),
            ("application/json;as=Nope;v=v1;g=meta.k8s.io", None),
            ("application/json;as=Nope;v=v1;g=meta.k8s.io,application/json", Some(Form::Object)),
            // A client that prefers protobuf gets JSON.
            ("application/vnd.kubernetes.protobuf,application/json", Some(Form::Object)),
        ] {
            assert_eq!(Accept::parse(Some(header)).form().ok(), expected, "{header}");
        }
    }
}
