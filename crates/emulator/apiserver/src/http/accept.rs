//! The form of a reply by the Accept header: objects, a Table, or metadata only.

use crate::status::ApiError;

/// The form of a reply.
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

/// One entry of an Accept header.
struct Entry<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

/// A parsed Accept header.
pub(crate) struct Accept<'a>(Vec<Entry<'a>>);

const AVAILABLE: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

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
            let protobuf = entry.media == "application/vnd.kubernetes.protobuf";
            let json = matches!(entry.media, "application/json" | "application/*" | "*/*");
            let yaml = entry.media == "application/yaml";
            known |= protobuf || json || yaml;
            match entry.get("as") {
                None if json => return Ok(Form::Object),
                None if yaml => return Ok(Form::Yaml),
                Some(form) if json || protobuf => {
                    if let Some(form) = entry.meta_form(form) {
                        return Ok(form);
                    }
                }
                _ => {}
            }
        }
        if self.0.iter().any(|entry| entry.media == "application/vnd.kubernetes.protobuf") {
            return Ok(Form::Object);
        }
        Err(if known {
            ApiError::not_acceptable(format!(
                "only the following media types are accepted: {AVAILABLE}"
            ))
        } else {
            unavailable(&format!(
                "{AVAILABLE}, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
            ))
        })
    }

    /// Whether only protobuf is accepted.
    pub(crate) fn is_protobuf_only(&self) -> bool {
        self.0.iter().all(|entry| entry.media == "application/vnd.kubernetes.protobuf")
    }

    /// Whether aggregated discovery is wanted (`Ok(true)`), or the legacy documents.
    pub(crate) fn aggregated_discovery(&self) -> Result<bool, ApiError> {
        for entry in &self.0 {
            if !matches!(
                entry.media,
                "application/json"
                    | "application/*"
                    | "*/*"
                    | "application/yaml"
                    | "application/vnd.kubernetes.protobuf"
            ) {
                continue;
            }
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
            unavailable(AVAILABLE)
        })
    }
}

fn unaccepted() -> ApiError {
    ApiError::not_acceptable(format!("only the following media types are accepted: {AVAILABLE}"))
}

fn unavailable(list: &str) -> ApiError {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {list}");
    ApiError { details: Some(serde_json::json!({})), ..ApiError::not_acceptable(message) }
}

impl Entry<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
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

    fn form(text: &str) -> Option<Form> {
        Accept::parse(Some(text)).form().ok()
    }

    #[test]
    fn by_quality_then_by_position() {
        assert_eq!(form("application/xml,application/json;q=0.5"), Some(Form::Object));
        assert_eq!(form("application/json;q=0.1,application/yaml"), Some(Form::Yaml));
        assert_eq!(form("text/html"), None);
    }

    #[test]
    fn tables_in_any_order_of_parameters() {
        let table = Some(Form::Table(MetaVersion::V1));
        assert_eq!(form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), table);
        assert_eq!(form("application/json;g=meta.k8s.io;as=Table;v=v1"), table);
        assert_eq!(form("application/json;as=Nope;v=v1;g=meta.k8s.io"), None);
        assert_eq!(
            form("application/json;as=Nope;v=v1;g=meta.k8s.io,application/json"),
            Some(Form::Object)
        );
    }

    #[test]
    fn clients_that_prefer_protobuf_get_json() {
        assert_eq!(
            form("application/vnd.kubernetes.protobuf,application/json"),
            Some(Form::Object)
        );
    }
}
