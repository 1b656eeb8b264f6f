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

    #[test]
    fn resource_paths_are_parsed() {
        // Group, namespace, plural, name, subresource; `-` is absent.
        for (path, expected) in [
            ("/api/v1/namespaces/lab/services/web/status", ",lab,services,web,status"),
            ("/apis/apps/v1/deployments", "apps,-,deployments,-,-"),
            // A Namespace is an object and a scope.
            ("/api/v1/namespaces/lab/finalize", ",-,namespaces,lab,finalize"),
            ("/api/v1/namespaces/lab/pods", ",lab,pods,-,-"),
            ("/api/v1/watch/namespaces/lab/pods", ",lab,pods,-,-"),
            // A name cannot add segments.
            ("/api/v1/nodes/a%2Fb", ",-,nodes,a/b,-"),
            ("/api/v1/namespaces//pods", ",-,,-,-"),
            ("/api/v1/services/", ",-,services,-,-"),
        ] {
            let Path::Resource(found) = parse_path(path) else { panic!("{path}") };
            assert_eq!(found.watch, path.contains("/watch/"), "{path}");
            let ResourcePath { group, namespace, plural, name, subresource, .. } = found;
            let optional = [namespace, Some(plural), name, subresource];
            let rest = optional.map(|part| part.unwrap_or_else(|| "-".to_owned())).join(",");
            assert_eq!(format!("{group},{rest}"), expected, "{path}");
        }
    }

    #[test]
    fn paths_without_resources_are_recognized() {
        assert_eq!(parse_path("/api/v1/nodes/%zz"), Path::Unknown);
        assert_eq!(parse_path("/version/"), Path::Version);
        assert_eq!(parse_path("/healthz/"), Path::Unknown);
        assert_eq!(parse_path("/"), Path::Root);
    }
}
