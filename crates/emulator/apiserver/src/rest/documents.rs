//! Paths without objects: discovery, OpenAPI, version, health, metrics.
//!
//! Discovery and OpenAPI documents are made on first request and cached until the resources change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method};
use nearhop_kinds::{Registry, discovery, openapi};
use nearhop_runtime::lock;
use serde_json::{Value, json};

use super::{header, health};
use crate::api::Api;
use crate::http::{Accept, Path, Query, Reply, json_body};
use crate::identity::Role;
use crate::status::ApiError;

/// The Kubernetes version of this API. Clients depend on it.
const VERSION: &str = "v1.36.2";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2";
const SWAGGER_PROTOBUF_ANSWER: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

#[derive(Clone)]
struct Document {
    body: Bytes,
    hash: String,
}

#[derive(Default)]
pub(crate) struct Documents(Mutex<Made>);

#[derive(Default)]
struct Made {
    of: Option<Arc<Registry>>,
    documents: BTreeMap<String, Document>,
}

impl Documents {
    /// The document with a name, made if it is missing.
    fn get(
        &self,
        registry: &Arc<Registry>,
        name: &str,
        make: impl FnOnce(&Registry) -> Option<Value>,
    ) -> Option<Document> {
        {
            let mut made = lock(&self.0);
            if !made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, registry)) {
                *made = Made { of: Some(Arc::clone(registry)), documents: BTreeMap::new() };
            }
            if let Some(document) = made.documents.get(name) {
                return Some(document.clone());
            }
        }
        // Made outside the lock: some take long.
        let body = json_body(&make(registry)?);
        let document = Document { hash: discovery::content_hash(&body), body };
        let mut made = lock(&self.0);
        if made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, registry)) {
            made.documents.insert(name.to_owned(), document.clone());
        }
        Some(document)
    }
}

/// Answers a request that is not about objects.
pub(super) fn answer(
    api: &Arc<Api>,
    request: &Parts,
    path: &Path,
    query: &Query,
    role: Role,
) -> Result<Reply, ApiError> {
    if request.method != Method::GET {
        return match path {
            Path::Unknown => Err(ApiError::no_such_path()),
            _ => Err(ApiError::method_not_allowed()),
        };
    }
    let headers = &request.headers;
    match path {
        Path::Version => Ok(version()),
        Path::Health(probe) => health::answer(api, probe, query, role),
        Path::Metrics => Ok(metrics(api)),
        Path::Root => Ok(root(api)),
        Path::Core { version } => core(api, headers, version.as_deref()),
        Path::Group { group, version } => {
            groups(api, headers, group.as_deref(), version.as_deref())
        }
        Path::OpenApi(None) => Ok(openapi_index(api)),
        Path::OpenApi(Some(name)) => openapi_document(api, headers, query, name),
        Path::Swagger => Ok(swagger(api, headers)),
        _ => Err(ApiError::no_such_path()),
    }
}

fn version() -> Reply {
    let text = serde_json::to_string_pretty(&json!({
        "major": "1", "minor": "36",
        "emulationMajor": "1", "emulationMinor": "36",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": VERSION,
        "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", go_arch())
    }));
    Reply::json_bytes(200, text.expect("a value is written to memory"))
}

/// The processor, as Go spells it.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn metrics(api: &Api) -> Reply {
    let counts = api.store.counts();
    let pairs = counts.iter().map(|(storage, count)| (&**storage, *count));
    let text = api.metrics.render(api.store.version(), pairs);
    Reply::new(200, nearhop_runtime::metrics::CONTENT_TYPE_TEXT, text)
}

fn root(api: &Api) -> Reply {
    let others =
        ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    Reply::json(200, &discovery::paths(&api.registry.load(), &others))
}

fn core(api: &Api, headers: &HeaderMap, version: Option<&str>) -> Result<Reply, ApiError> {
    let aggregated = Accept::parse(header(headers, ACCEPT)).aggregated_discovery()?;
    let registry = api.registry.load_full();
    match version {
        None if aggregated => {
            Ok(aggregated_reply(api, headers, &registry, "api", discovery::aggregated_core))
        }
        None => Ok(Reply::json(200, &discovery::core_versions(&registry, &api.address))),
        Some(version) => discovery::resource_list(&registry, "", version)
            .map(|list| Reply::json(200, &list))
            .ok_or_else(ApiError::no_such_resource),
    }
}

fn groups(
    api: &Api,
    headers: &HeaderMap,
    group: Option<&str>,
    version: Option<&str>,
) -> Result<Reply, ApiError> {
    let aggregated = Accept::parse(header(headers, ACCEPT)).aggregated_discovery()?;
    let registry = api.registry.load_full();
    let Some(group) = group else {
        return Ok(if aggregated {
            aggregated_reply(api, headers, &registry, "apis", discovery::aggregated_groups)
        } else {
            Reply::json(200, &discovery::group_list(&registry))
        });
    };
    if !registry.has_group(group) {
        return Err(ApiError::no_such_path());
    }
    let document = match version {
        None => discovery::group(&registry, group),
        Some(version) => discovery::resource_list(&registry, group, version),
    };
    document.map(|value| Reply::json(200, &value)).ok_or_else(ApiError::no_such_resource)
}

fn aggregated_reply(
    api: &Api,
    headers: &HeaderMap,
    registry: &Arc<Registry>,
    name: &str,
    make: fn(&Registry) -> Value,
) -> Reply {
    let document = api.documents.get(registry, name, |registry| Some(make(registry)));
    let document = document.expect("discovery is always there");
    let reply = if is_current(headers, &document.hash) {
        Reply::new(304, "", Bytes::new())
    } else {
        Reply::new(200, AGGREGATED, document.body.clone())
    };
    cached(reply, &document.hash, "public")
}

fn openapi_index(api: &Api) -> Reply {
    let registry = api.registry.load_full();
    let document = api.documents.get(&registry, "openapi/v3", |r| Some(openapi::index(r)));
    Reply::text(200, document.expect("the index is always there").body)
}

fn openapi_document(
    api: &Api,
    headers: &HeaderMap,
    query: &Query,
    name: &str,
) -> Result<Reply, ApiError> {
    // The document is always JSON.
    let accept = header(headers, ACCEPT);
    let protobuf = accept.is_some_and(|text| text.contains("proto-openapi.spec.v3"));
    if !protobuf && Accept::parse(accept).form().is_err() {
        return Ok(Reply::new(406, "", Bytes::new()));
    }
    let registry = api.registry.load_full();
    let parts: Vec<&str> = name.split('/').collect();
    let (group, version) = match *parts.as_slice() {
        ["api", version] => ("", version),
        ["apis", group, version] => (group, version),
        _ => return Ok(Reply::new(404, "", Bytes::new())),
    };
    let document = api.documents.get(&registry, &format!("openapi/v3/{name}"), |registry| {
        openapi::document(registry, group, version)
    });
    let Some(document) = document else { return Ok(Reply::new(404, "", Bytes::new())) };
    // The hash of the index, which is known without making the document.
    let hash = openapi::document_hash(&registry, group, version);
    if let Some(asked) = query.get("hash")
        && asked != hash
    {
        let location = format!("/openapi/v3/{name}?hash={hash}");
        let location = HeaderValue::from_str(&location).map_err(|_| ApiError::no_such_path())?;
        return Ok(Reply::json_bytes(301, Bytes::new()).with_header(LOCATION, location));
    }
    let reply = if is_current(headers, &hash) {
        Reply::new(304, "", Bytes::new())
    } else {
        Reply::json_bytes(200, document.body)
    };
    if query.get("hash").is_none() {
        return Ok(cached(reply, &hash, "no-cache, private"));
    }
    let in_a_year = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * 365);
    let expires = in_a_year.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string();
    let expires = HeaderValue::from_str(&expires).expect("a date is a header's value");
    let reply = reply.with_header(EXPIRES, expires);
    Ok(cached(reply, &hash, "public, immutable"))
}

/// kubectl requests the protobuf form only for a kind that the v3 documents do not have. So that
/// form is empty.
fn swagger(api: &Api, headers: &HeaderMap) -> Reply {
    let accept = header(headers, ACCEPT).unwrap_or("*/*");
    if accept.split(',').all(|entry| entry.trim().starts_with(SWAGGER_PROTOBUF)) {
        return Reply::new(200, SWAGGER_PROTOBUF_ANSWER, empty_swagger());
    }
    let registry = api.registry.load_full();
    let document = api.documents.get(&registry, "openapi/v2", |r| Some(openapi::swagger(r)));
    Reply::json_bytes(200, document.expect("the document is always there").body)
}

/// The message `openapi.v2.Document`: 1 = swagger, 2 = info { 1 = title, 2 = version }, 8 = paths.
fn empty_swagger() -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).expect("each part is shorter than 128 bytes");
        [&[number << 3 | 2, length], content].concat()
    };
    let info = [field(1, b"Kubernetes"), field(2, VERSION.as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info), field(8, b"")].concat()
}

fn is_current(headers: &HeaderMap, hash: &str) -> bool {
    header(headers, IF_NONE_MATCH).is_some_and(|tags| tags.contains(hash))
}

fn cached(mut reply: Reply, hash: &str, control: &'static str) -> Reply {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{hash}\"")) {
        reply = reply.with_header(ETAG, tag);
    }
    reply
        .with_header(VARY, HeaderValue::from_static("Accept"))
        .with_header(CACHE_CONTROL, HeaderValue::from_static(control))
}
