//! Requests: authentication, authorization, and the function of each verb.

mod body;
mod create;
mod delete;
mod documents;
mod evict;
mod health;
mod options;
mod page;
mod patch;
mod read;
mod review;
mod subresource;
mod token;
mod update;
mod view;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method};
use hyper::body::Incoming;
use nearhop_kinds::strategy::Review;
use nearhop_kinds::{Resource, Subresource, Verb};
use serde_json::json;

pub(crate) use body::shape;
pub(crate) use create::create_object;
pub(crate) use delete::{FOREGROUND, ORPHAN, delete_object};
pub(crate) use documents::Documents;
pub(crate) use update::is_finished;
pub(crate) use write::{ObjectKey, Writer, content_of, name_of, now_text, write_of};

use crate::api::Api;
use crate::fault::{FaultTarget, Faults};
use crate::http::{Accept, Body, Form, Path, Query, Reply, ResourcePath, parse_path};
use crate::identity::Role;
use crate::status::ApiError;
use crate::user::User;

/// A request for objects. Its path was resolved once: the resource holds the strategy of its kind.
pub(crate) struct Request {
    parts: Parts,
    verb: Verb,
    resource: Arc<Resource>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<Subresource>,
    query: Query,
    body: Bytes,
    user: User,
}

impl Request {
    /// The object that the path names; its name is empty for a collection.
    fn key(&self) -> ObjectKey<'_> {
        ObjectKey {
            resource: &self.resource,
            namespace: self.namespace.as_deref().unwrap_or_default(),
            name: self.name.as_deref().unwrap_or_default(),
        }
    }

    fn form(&self) -> Result<Form, ApiError> {
        let accept = Accept::parse(header(&self.parts.headers, ACCEPT));
        if self.resource.is_custom() && accept.is_protobuf_only() {
            return Err(ApiError::not_acceptable(
                "only the following media types are accepted: application/json, application/yaml",
            ));
        }
        accept.form()
    }

    fn content_type(&self) -> Option<&str> {
        let text = header(&self.parts.headers, CONTENT_TYPE)?;
        Some(text.split(';').next().unwrap_or(text).trim()).filter(|text| !text.is_empty())
    }

    /// The field manager if the request names none: the User-Agent before the first `/`.
    fn default_manager(&self) -> &str {
        let agent = header(&self.parts.headers, USER_AGENT).unwrap_or_default();
        match agent.split('/').next() {
            None | Some("") => "unknown",
            Some(name) => name,
        }
    }
}

fn header(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Answers a request. The task runs to its end even if the client disconnects, so that a write is
/// never half done.
pub(crate) async fn handle(
    api: Arc<Api>,
    request: http::Request<Incoming>,
) -> http::Response<Body> {
    let work = tokio::spawn(answer_counted(api, request));
    work.await.unwrap_or_else(|error| {
        let message = format!("the request handler failed: {error}");
        Reply::error(&ApiError::internal(message)).into_response()
    })
}

async fn answer_counted(api: Arc<Api>, request: http::Request<Incoming>) -> http::Response<Body> {
    let started = Instant::now();
    let (parts, incoming) = request.into_parts();
    let path = parse_path(parts.uri.path());
    let query = Query::parse(parts.uri.query());
    let verb = verb_of(&parts.method, &path, &query);
    let target = match &path {
        Path::Resource(path) => resolve(&api, path),
        _ => Err(ApiError::no_such_path()),
    };
    // Only plurals that exist: each value of the label costs memory.
    let resource = target.as_ref().ok().map(|(resource, _)| Arc::clone(resource));
    let reply = match path {
        Path::Resource(path) => {
            answer_objects(&api, parts, incoming, path, target, query, verb).await
        }
        path => answer_document(&api, parts, incoming, &path, &query).await,
    };
    let reply = reply.unwrap_or_else(|error| Reply::error(&error));
    let resource = resource.as_ref().map_or("", |resource| &resource.plural);
    api.metrics.finished(verb, resource, reply.code, started.elapsed());
    reply.into_response()
}

/// The verb of a request, as roles and metrics spell it.
fn verb_of(method: &Method, path: &Path, query: &Query) -> Verb {
    let (one, watch) = match path {
        Path::Resource(path) => (path.name.is_some(), path.watch),
        _ => (true, false),
    };
    match *method {
        Method::GET if watch || (!one && query.flag("watch")) => Verb::Watch,
        Method::GET | Method::HEAD if one => Verb::Get,
        Method::GET | Method::HEAD => Verb::List,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if one => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}

/// The resource of a path, and the subresource.
type Target = (Arc<Resource>, Option<Subresource>);

/// Finds what a path names. A resource that a built-in group does not have is a 404 with a
/// `Status`, any other path a plain 404.
fn resolve(api: &Api, path: &ResourcePath) -> Result<Target, ApiError> {
    let registry = api.registry.load();
    let Some(resource) = registry.find(&path.group, &path.version, &path.plural) else {
        let in_group = |resource: &Arc<Resource>| *resource.group == *path.group;
        let built_in = registry.resources().iter().any(|r| in_group(r) && !r.is_custom());
        return Err(if built_in { ApiError::no_such_resource() } else { ApiError::no_such_path() });
    };
    let subresource = path.subresource.as_deref().map(|name| {
        let known = Subresource::parse(name).filter(|known| resource.has(*known));
        known.ok_or_else(ApiError::no_such_resource)
    });
    Ok((Arc::clone(resource), subresource.transpose()?))
}

fn authenticate(api: &Api, parts: &Parts, query: &Query) -> Result<User, ApiError> {
    let user = User::authenticate(api, header(&parts.headers, AUTHORIZATION))
        .ok_or_else(ApiError::unauthorized)?;
    if let Some(text) = query.get("timeout") {
        body::check_duration(text)?;
    }
    Ok(user)
}

/// Answers a request that is not about objects.
async fn answer_document(
    api: &Arc<Api>,
    parts: Parts,
    incoming: Incoming,
    path: &Path,
    query: &Query,
) -> Result<Reply, ApiError> {
    let user = authenticate(api, &parts, query)?;
    if *path == Path::Faults {
        return answer_faults(api, &parts.method, incoming, &user).await;
    }
    let forbidden = match user.role {
        Role::Admin | Role::ReadOnly => false,
        Role::ServiceAccount => matches!(path, Path::Metrics),
        Role::Anonymous => !matches!(path, Path::Version | Path::Health(_)),
    };
    if forbidden {
        return Err(ApiError::forbidden_path(&user.name(), "get", parts.uri.path()));
    }
    documents::answer(api, &parts, path, query, user.role)
}

async fn answer_objects(
    api: &Arc<Api>,
    parts: Parts,
    incoming: Incoming,
    path: ResourcePath,
    target: Result<Target, ApiError>,
    query: Query,
    verb: Verb,
) -> Result<Reply, ApiError> {
    let user = authenticate(api, &parts, &query)?;
    let asked = FaultTarget {
        user_agent: header(&parts.headers, USER_AGENT).unwrap_or_default(),
        path_and_query: parts.uri.path_and_query().map_or("", |whole| whole.as_str()),
        verb,
    };
    api.faults.inject(asked).await?;
    let (resource, subresource) = target?;
    let ResourcePath { namespace, name, .. } = path;
    let body = Bytes::new();
    let mut request =
        Request { parts, verb, resource, namespace, name, subresource, query, body, user };
    authorize(&request)?;
    check_scope(&request)?;
    if subresource.is_some_and(Subresource::is_answered_by_kubelet) {
        return subresource::forward_to_kubelet(api, request, incoming).await;
    }
    let writes = !matches!(request.parts.method, Method::GET | Method::HEAD);
    if writes {
        request.body = body::read(incoming).await?;
    }
    // The number of concurrent writes is limited, so that reads stay fast under many writes. The
    // body is read before, so that a slow client does not delay other writes.
    let _turn = if writes { Some(api.write_turn().await?) } else { None };
    let mut warnings: Vec<String> =
        request.resource.strategy.deprecation.map(str::to_owned).into_iter().collect();
    let result = dispatch(api, &request, &mut warnings).await;
    let reply = result.unwrap_or_else(|error| {
        match Accept::parse(header(&request.parts.headers, ACCEPT)).form() {
            Ok(Form::Yaml) if !error.plain => view::yaml(error.code, &error.to_status()),
            _ => Reply::error(&error),
        }
    });
    Ok(reply.with_warnings(&warnings))
}

/// A path with a namespace is of a namespaced resource; one object of such has a namespace.
fn check_scope(request: &Request) -> Result<(), ApiError> {
    match (request.resource.namespaced, &request.namespace) {
        (true, None) if request.name.is_some() || request.verb == Verb::Create => {
            Err(ApiError::method_not_allowed())
        }
        (false, Some(_)) => Err(ApiError::no_such_resource()),
        _ => Ok(()),
    }
}

fn authorize(request: &Request) -> Result<(), ApiError> {
    let Request { resource, subresource, user, .. } = request;
    // A WebSocket begins with a GET, but a client that runs a command in a Pod needs more rights.
    let verb = match subresource {
        Some(sub) if sub.runs_in_container() => Verb::Create,
        _ => request.verb,
    };
    // Every client with a token may ask for its own rights.
    let about_self = resource.strategy.review.is_some_and(Review::is_about_self);
    if user.role.may(verb, Some(resource), *subresource)
        || about_self && user.role != Role::Anonymous
    {
        return Ok(());
    }
    let plural = match subresource {
        Some(sub) => format!("{}/{sub}", resource.plural),
        None => resource.plural.to_string(),
    };
    let place = match &request.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User {:?} cannot {verb} resource {plural:?} in API group {:?} {place}",
        user.name(),
        resource.group
    );
    Err(ApiError::forbidden(resource, request.key().name, &why))
}

async fn dispatch(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let Request { resource, verb, .. } = request;
    let verbs = match request.subresource.and_then(|sub| resource.subresource(sub)) {
        Some(sub) => &sub.verbs,
        None => &resource.verbs,
    };
    if request.parts.method == Method::HEAD || !verbs.contains(verb) {
        return Err(ApiError::method_not_allowed());
    }
    if let Some(sub) = request.subresource {
        return subresource::answer(api, request, sub, warnings).await;
    }
    match (verb, &request.name) {
        (Verb::Get, Some(_)) => read::get(api, request).await,
        (Verb::List, None) => read::list(api, request).await,
        (Verb::Watch, _) => watch::watch(api, request),
        (Verb::Create, None) => create::create(api, request, warnings).await,
        (Verb::Update, Some(_)) => update::put(api, request, warnings).await,
        (Verb::Patch, Some(_)) => patch::patch(api, request, warnings).await,
        (Verb::Delete, Some(_)) => delete::delete(api, request).await,
        (Verb::DeleteCollection, None) => delete::delete_collection(api, request).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

async fn answer_faults(
    api: &Arc<Api>,
    method: &Method,
    incoming: Incoming,
    user: &User,
) -> Result<Reply, ApiError> {
    if !api.faults_enabled {
        return Err(ApiError::no_such_path());
    }
    if user.role != Role::Admin {
        return Err(ApiError::forbidden_path(&user.name(), "post", "/nearhop/faults"));
    }
    match *method {
        Method::GET => return Ok(Reply::json(200, &api.faults.describe())),
        Method::POST => {}
        _ => return Err(ApiError::method_not_allowed()),
    }
    let body = body::read(incoming).await?;
    let faults = Faults::parse(&body)
        .map_err(|why| ApiError::bad_request(format!("invalid faults: {why}")))?;
    api.apply_faults(faults);
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    Ok(Reply::json(200, &status))
}
