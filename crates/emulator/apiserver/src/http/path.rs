//! Parsing of paths.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Objects.
    Resource(ResourcePath),
    /// `/api` and below, without a resource.
    Core {
        version: Option<String>,
    },
    /// `/apis` and below, without a resource.
    Group {
        group: Option<String>,
        version: Option<String>,
    },
    /// `/openapi/v2`.
    Swagger,
    /// `/openapi/v3`, or the document of a group version (`api/v1`, `apis/apps/v1`).
    OpenApi(Option<String>),
    Version,
    /// `/healthz`, `/livez`, `/readyz`.
    Health(HealthPath),
    Metrics,
    Faults,
    Root,
    Unknown,
}

/// A health endpoint, and one of its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthPath {
    pub(crate) endpoint: String,
    pub(crate) check: Option<String>,
}

/// A collection of objects, one of them, or a subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// The old spelling `/api/v1/watch/…`.
    pub(crate) watch: bool,
}

/// Reads a path. Segments are percent-decoded one by one, so that a name cannot add segments.
pub(crate) fn parse_path(path: &str) -> Path {
    let decoded: Option<Vec<String>> = path.split('/').skip(1).map(decode).collect();
    let Some(decoded) = decoded else { return Path::Unknown };
    let mut segments: Vec<&str> = decoded.iter().map(String::as_str).collect();
    let trailing = segments.len() > 1 && segments.last() == Some(&"");
    if trailing {
        segments.pop();
    }
    match segments.as_slice() {
        [] | [""] => Path::Root,
        ["version"] => Path::Version,
        ["metrics"] => Path::Metrics,
        ["healthz" | "livez" | "readyz"] if trailing => Path::Unknown,
        [endpoint @ ("healthz" | "livez" | "readyz"), check @ ..] => Path::Health(HealthPath {
            endpoint: (*endpoint).to_owned(),
            check: (!check.is_empty()).then(|| check.join("/")),
        }),
        ["nearhop", "faults"] => Path::Faults,
        ["openapi", "v2"] => Path::Swagger,
        ["openapi", "v3"] => Path::OpenApi(None),
        ["openapi", "v3", rest @ ..] => Path::OpenApi(Some(rest.join("/"))),
        ["api"] => Path::Core { version: None },
        ["api", version] => Path::Core { version: Some((*version).to_owned()) },
        ["api", version, rest @ ..] => parse_resource("", version, rest),
        ["apis"] => Path::Group { group: None, version: None },
        ["apis", group] => Path::Group { group: Some((*group).to_owned()), version: None },
        ["apis", group, version] => {
            Path::Group { group: Some((*group).to_owned()), version: Some((*version).to_owned()) }
        }
        ["apis", group, version, rest @ ..] => parse_resource(group, version, rest),
        _ => Path::Unknown,
    }
}

fn parse_resource(group: &str, version: &str, rest: &[&str]) -> Path {
    let (watch, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        _ => (false, rest),
    };
    let mut path = ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        watch,
        ..ResourcePath::default()
    };
    if rest.iter().any(|part| part.is_empty()) {
        // The empty plural is of no resource, so the response is a 404.
        return Path::Resource(path);
    }
    let rest = match rest {
        // Subresources of a Namespace; all other paths below it are resources in it.
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => rest,
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
            path.namespace = Some((*namespace).to_owned());
            rest
        }
        _ => rest,
    };
    let text = |at: usize| rest.get(at).map(|part| (*part).to_owned());
    path.plural = text(0).unwrap_or_default();
    path.name = text(1);
    path.subresource = text(2);
    // Only paths of the proxy subresource are longer; this server has none.
    if rest.len() > 3 { Path::Unknown } else { Path::Resource(path) }
}

fn decode(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            let text = std::str::from_utf8(&digits).ok()?;
            out.push(u8::from_str_radix(text, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourcePath {
        match parse_path(path) {
            Path::Resource(resource) => resource,
            other => panic!("{path} is {other:?}"),
        }
    }

    #[test]
    fn objects() {
        let one = resource("/api/v1/namespaces/lab/services/web/status");
        assert_eq!(one.namespace.as_deref(), Some("lab"));
        assert_eq!((one.plural.as_str(), one.name.as_deref()), ("services", Some("web")));
        assert_eq!(one.subresource.as_deref(), Some("status"));
        let all = resource("/apis/apps/v1/deployments");
        assert_eq!(
            (all.group.as_str(), all.plural.as_str(), all.name),
            ("apps", "deployments", None)
        );
    }

    #[test]
    fn a_namespace_is_an_object_and_a_scope() {
        let itself = resource("/api/v1/namespaces/lab/finalize");
        assert_eq!(itself.plural, "namespaces");
        assert_eq!(itself.subresource.as_deref(), Some("finalize"));
        assert_eq!(resource("/api/v1/namespaces/lab/pods").namespace.as_deref(), Some("lab"));
        assert!(resource("/api/v1/watch/namespaces/lab/pods").watch);
    }

    #[test]
    fn a_name_cannot_add_segments() {
        assert_eq!(resource("/api/v1/nodes/a%2Fb").name.as_deref(), Some("a/b"));
        assert_eq!(parse_path("/api/v1/nodes/%zz"), Path::Unknown);
        assert_eq!(resource("/api/v1/namespaces//pods").plural, "");
    }

    #[test]
    fn trailing_slashes() {
        assert_eq!(parse_path("/version/"), Path::Version);
        assert_eq!(resource("/api/v1/services/").name, None);
        assert_eq!(parse_path("/healthz/"), Path::Unknown);
        assert_eq!(parse_path("/"), Path::Root);
    }
}
