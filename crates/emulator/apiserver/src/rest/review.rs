//! Reviews of identity and access. They are answered, not stored.

use std::sync::Arc;

use nearhop_kinds::options::FieldValidation;
use nearhop_kinds::strategy::Review;
use nearhop_kinds::{Subresource, Verb};
use serde_json::{Value, json};

use super::write::{Writer, now_text};
use super::{Request, body};
use crate::api::Api;
use crate::http::Reply;
use crate::identity::Role;
use crate::service_account::{ISSUER, account_of};
use crate::status::ApiError;
use crate::user::User;

pub(super) fn answer(api: &Arc<Api>, request: &Request, kind: Review) -> Result<Reply, ApiError> {
    let resource = &request.resource;
    let decoded = body::decode(request, &resource.kind)?;
    let mut review = body::to_object(request, decoded, FieldValidation::Ignore, &mut Vec::new())?;
    let status = match kind {
        Review::SelfSubject => json!({"userInfo": request.user.info()}),
        Review::Token => token_status(api, &review["spec"]),
        Review::SelfSubjectAccess => access(api, request.user.role, &review["spec"]),
        Review::SelfSubjectRules => rules(request.user.role),
        Review::SubjectAccess => {
            let user = review["spec"]["user"].as_str().unwrap_or_default();
            let known = [Role::Admin, Role::ReadOnly, Role::Anonymous];
            let role = known.into_iter().find(|role| role.user() == user);
            access(api, role.unwrap_or(Role::Anonymous), &review["spec"])
        }
    };
    if kind != Review::SelfSubjectRules {
        Writer::server(request.default_manager(), None).track(resource, None, &mut review);
    }
    review["status"] = status;
    review["kind"] = (*resource.kind).into();
    review["apiVersion"] = resource.api_version().into();
    if kind == Review::SelfSubject {
        review["metadata"]["creationTimestamp"] = now_text().into();
    }
    Ok(Reply::json(201, &review))
}

fn token_status(api: &Api, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    if let Some(user) = User::authenticate(api, Some(&format!("Bearer {token}")))
        && user.role != Role::ServiceAccount
    {
        return json!({"authenticated": true, "user": user.info()});
    }
    let named = spec["audiences"].as_array().into_iter().flatten();
    let mut audiences: Vec<String> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    match account_of(api, token, &audiences) {
        Some(account) => {
            let audiences = account.audiences.clone();
            let user = User::of_account(account).info();
            json!({"authenticated": true, "user": user, "audiences": audiences})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

fn access(api: &Api, role: Role, spec: &Value) -> Value {
    let asked = &spec["resourceAttributes"];
    let text = |key: &str| asked[key].as_str().unwrap_or_default();
    let path_verb = spec["nonResourceAttributes"]["verb"].as_str();
    let verb = asked["verb"].as_str().or(path_verb).and_then(Verb::parse).unwrap_or(Verb::Other);
    let registry = api.registry.load();
    let mut resources = registry.resources().iter();
    let resource = resources.find(|r| *r.group == *text("group") && *r.plural == *text("resource"));
    let subresource = Subresource::parse(text("subresource"));
    json!({"allowed": role.may(verb, resource.map(Arc::as_ref), subresource)})
}

/// The rights of a role. Every token allows reviews about itself and discovery.
fn rules(role: Role) -> Value {
    const PROBES: &str = "/healthz /livez /readyz /version /version/";
    const DISCOVERY: &str = "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* \
        /readyz /version /version/";
    let verbs: &[&str] = match role {
        Role::Admin => &["*"],
        Role::ReadOnly => &["get", "list", "watch"],
        Role::ServiceAccount | Role::Anonymous => &[],
    };
    let rule = |verbs: &[&str], group: &str, resources: &[&str]| json!({"verbs": verbs, "apiGroups": [group], "resources": resources});
    let paths = |verbs: &[&str], urls: &str| json!({"verbs": verbs, "nonResourceURLs": urls.split(' ').collect::<Vec<_>>()});
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    if !verbs.is_empty() {
        resources.push(rule(verbs, "*", &["*"]));
        urls.push(paths(verbs, "*"));
    }
    if role != Role::Anonymous {
        let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
        resources.push(rule(&["create"], "authorization.k8s.io", &reviews));
        resources.push(rule(&["create"], "authentication.k8s.io", &["selfsubjectreviews"]));
        urls.push(paths(&["get"], DISCOVERY));
    } else {
        urls.push(paths(&["get"], PROBES));
    }
    let mut rules =
        json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": false});
    if role == Role::ReadOnly {
        // Rules cannot deny.
        rules["incomplete"] = true.into();
        rules["evaluationError"] =
            "secrets, and exec, attach and portforward of pods, are not allowed".into();
    }
    rules
}
