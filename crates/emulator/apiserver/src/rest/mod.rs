//! What a request means: who asks, for what, and which verb answers.

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
use http::{HeaderMap, Method};
use hyper::body::Incoming;
use nearhop_kinds::strategy::resource_warning;
use nearhop_kinds::{Registry, Resource};

pub(crate) use body::shape;
pub(crate) use create::create_object;
pub(crate) use delete::{delete_object, without_finalizer};
pub(crate) use documents::Documents;
pub(crate) use update::{Place, is_finished};
pub(crate) use write::{Ownership, Writer, content_of, name_of, now_text, write_of};

use crate::api::Api;
use crate::fault::{Asked, Faults};
use crate::http::{Accept, Body, Form, Path, Query, Reply, Target, parse_path};
use crate::identity::Role;
use crate::metrics::RequestLabels;
use crate::status::ApiError;
use crate::user::User;

/// A request for objects, after its resource was found.
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) target: Target,
    pub(crate) resource: Arc<Resource>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) user: User,
}

impl Request {
    /// The namespace of the path; empty where there is none.
    fn namespace(&self) -> &str {
        self.target.namespace.as_deref().unwrap_or_default()
    }

    /// The form of the answer.
    fn form(&self) -> Result<Form, ApiError> {
        let accept = Accept::parse(header(&self.headers, ACCEPT));
        if self.resource.is_custom() && accept.is_protobuf_only() {
            return Err(ApiError::not_acceptable(
                "only the following media types are accepted: application/json, application/yaml",
            ));
        }
        accept.form()
    }

    fn content_type(&self) -> Option<&str> {
        let text = header(&self.headers, CONTENT_TYPE)?;
        Some(text.split(';').next().unwrap_or(text).trim()).filter(|text| !text.is_empty())
    }

    /// Who writes, if the request does not say: the client's name before the first `/`.
    fn default_manager(&self) -> &str {
        let agent = header(&self.headers, USER_AGENT).unwrap_or_default();
        match agent.split('/').next() {
            None | Some("") => "unknown",
            Some(name) => name,
        }
    }
}

fn header(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Answers a request. It is worked on to its end even if the client goes away: half of a write
/// (addresses that were taken, a commit that nobody waits for) must not be left behind.
pub(crate) async fn handle(
    api: Arc<Api>,
    request: http::Request<Incoming>,
) -> http::Response<Body> {
    let work = tokio::spawn(answer_counted(api, request));
    work.await.unwrap_or_else(|error| {
        let message = format!("the request could not be worked on: {error}");
        Reply::error(&ApiError::internal(message)).into_response()
    })
}

async fn answer_counted(api: Arc<Api>, request: http::Request<Incoming>) -> http::Response<Body> {
    let started = Instant::now();
    let path = parse_path(request.uri().path());
    let query = Query::parse(request.uri().query());
    let verb = verb_of(request.method(), &path, &query);
    // Only names that exist: anybody can ask for any path, and each label costs memory.
    let resource = match &path {
        Path::Resource(target) if find_resource(&api, target).is_ok() => target.plural.clone(),
        _ => String::new(),
    };
    let reply = match answer(&api, request, &path, query, verb).await {
        Ok(reply) => reply,
        Err(error) => Reply::error(&error),
    };
    api.metrics.finished(RequestLabels { verb, resource, code: reply.code }, started.elapsed());
    reply.into_response()
}

/// The verb of the API, as roles and metrics know it.
fn verb_of(method: &Method, path: &Path, query: &Query) -> &'static str {
    let (one, watch) = match path {
        Path::Resource(target) => (target.name.is_some(), target.watch),
        _ => (true, false),
    };
    match *method {
        Method::GET if watch || (!one && query.flag("watch")) => "watch",
        Method::GET | Method::HEAD if one => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if one => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}

async fn answer(
    api: &Arc<Api>,
    request: http::Request<Incoming>,
    path: &Path,
    query: Query,
    verb: &'static str,
) -> Result<Reply, ApiError> {
    let user = User::authenticate(api, header(request.headers(), AUTHORIZATION))
        .ok_or_else(ApiError::unauthorized)?;
    if let Some(text) = query.get("timeout") {
        body::check_duration(text)?;
    }
    match path {
        Path::Resource(target) => {
            let asked = Asked {
                user_agent: header(request.headers(), USER_AGENT).unwrap_or_default(),
                path_and_query: request.uri().path_and_query().map_or("", |whole| whole.as_str()),
                verb,
            };
            api.faults.inflict(asked).await?;
            answer_resource(api, request, target.clone(), query, user, verb).await
        }
        Path::Faults => answer_faults(api, request, &user).await,
        other => {
            let open = matches!(other, Path::Version | Path::Health(_));
            let forbidden = match user.role {
                Role::Admin | Role::ReadOnly => false,
                Role::ServiceAccount => matches!(other, Path::Metrics),
                Role::Anonymous => !open,
            };
            if forbidden {
                return Err(ApiError::forbidden_path(&user.name(), "get", request.uri().path()));
            }
            documents::answer(api, &request, other, &query, user.role)
        }
    }
}

async fn answer_resource(
    api: &Arc<Api>,
    request: http::Request<Incoming>,
    target: Target,
    query: Query,
    user: User,
    verb: &'static str,
) -> Result<Reply, ApiError> {
    let resource = find_resource(api, &target)?;
    // A WebSocket begins as a GET; running a command is no reading all the same.
    let asked = if subresource::runs_something(&resource, &target) { "create" } else { verb };
    authorize(&resource, &target, &user, asked)?;
    if resource.namespaced
        && target.namespace.is_none()
        && (target.name.is_some() || verb == "create")
    {
        return Err(ApiError::method_not_allowed());
    }
    if !resource.namespaced && target.namespace.is_some() {
        return Err(ApiError::no_such_resource());
    }
    let mut warnings: Vec<String> =
        resource_warning(&resource).map(str::to_owned).into_iter().collect();
    if subresource::is_passed_on(&resource, target.subresource.as_deref()) {
        return subresource::pass_on(api, request, &resource, &target).await;
    }
    let (parts, incoming) = request.into_parts();
    let writes = !matches!(parts.method, Method::GET | Method::HEAD);
    let body = if writes { body::read(incoming).await? } else { Bytes::new() };
    // Writers wait here for each other, so that a flood of them leaves room for reads; with their
    // bodies at hand, so that one who sends slowly holds nobody up.
    let _turn = if writes { Some(api.write_turn().await?) } else { None };
    let request = Request {
        method: parts.method,
        target,
        resource,
        query,
        headers: parts.headers,
        body,
        user,
    };
    let result = dispatch(api, &request, verb, &mut warnings).await;
    let reply = result.unwrap_or_else(|error| {
        match Accept::parse(header(&request.headers, ACCEPT)).form() {
            Ok(Form::Yaml) if !error.plain => view::yaml(error.code, &error.to_status()),
            _ => Reply::error(&error),
        }
    });
    Ok(reply.with_warnings(&warnings))
}

/// The resource of a path: of a known group it is a `Status` if it is not there, of an unknown one
/// a plain 404.
fn find_resource(api: &Api, target: &Target) -> Result<Arc<Resource>, ApiError> {
    let registry = api.registry.load();
    match registry.find(&target.group, &target.version, &target.plural) {
        Some(resource) => Ok(Arc::clone(resource)),
        None if is_built_in(&registry, &target.group) => Err(ApiError::no_such_resource()),
        None => Err(ApiError::no_such_path()),
    }
}

fn is_built_in(registry: &Registry, group: &str) -> bool {
    registry.resources().iter().any(|resource| &*resource.group == group && !resource.is_custom())
}

fn authorize(
    resource: &Resource,
    target: &Target,
    user: &User,
    verb: &str,
) -> Result<(), ApiError> {
    let plural = match &target.subresource {
        Some(sub) => format!("{}/{sub}", resource.plural),
        None => resource.plural.to_string(),
    };
    // Anybody with a token may ask what the token may do.
    let asking = review::is_about_self(resource) && user.role != Role::Anonymous;
    if user.role.may(verb, &resource.group, &plural) || asking {
        return Ok(());
    }
    let place = match &target.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User {:?} cannot {verb} resource {plural:?} in API group {:?} {place}",
        user.name(),
        resource.group
    );
    Err(ApiError::forbidden(resource, target.name.as_deref().unwrap_or_default(), &why))
}

async fn dispatch(
    api: &Arc<Api>,
    request: &Request,
    verb: &str,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    if let Some(sub) = &request.target.subresource {
        let name = request.target.name.as_deref().unwrap_or_default();
        return subresource::answer(api, request, name, sub, verb, warnings).await;
    }
    let supported = |verb: &str| request.resource.verbs.iter().any(|known| **known == *verb);
    if request.method == Method::HEAD || !supported(verb) {
        return Err(ApiError::method_not_allowed());
    }
    match (verb, request.target.name.as_deref()) {
        ("get", Some(name)) => read::get(api, request, name).await,
        ("list", None) => read::list(api, request).await,
        ("watch", _) => watch::watch(api, request),
        ("create", None) => create::create(api, request, warnings).await,
        ("update", Some(name)) => update::put(api, request, name, None, warnings).await,
        ("patch", Some(name)) => patch::patch(api, request, name, None, warnings).await,
        ("delete", Some(name)) => delete::delete(api, request, name).await,
        ("deletecollection", None) => delete::delete_collection(api, request).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

async fn answer_faults(
    api: &Arc<Api>,
    request: http::Request<Incoming>,
    user: &User,
) -> Result<Reply, ApiError> {
    if !api.faults_enabled {
        return Err(ApiError::no_such_path());
    }
    if user.role != Role::Admin {
        return Err(ApiError::forbidden_path(&user.name(), "post", "/nearhop/faults"));
    }
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let body = body::read(request.into_body()).await?;
    let faults = Faults::parse(&body)
        .map_err(|why| ApiError::bad_request(format!("the faults were not understood: {why}")))?;
    api.inflict(faults);
    Ok(Reply::json(
        200,
        &serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
    ))
}
