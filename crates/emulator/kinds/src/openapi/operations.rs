//! `paths`: the operations of each resource. kubectl reads only the parameters and media types of
//! PATCH. Watches by path and connections to pods are left out.

use serde_json::{Map, Value, json};

use super::facts::facts;
use super::parameters::{self, parameter};
use super::{gv_of, name};
use crate::resource::{Resource, SubresourceEntry};
use crate::verb::{Subresource, Verb};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// The names of the schemas that a resource's operations speak of.
pub(super) struct Bodies {
    pub(super) object: String,
    pub(super) list: String,
}

/// One path with its operations.
struct Path<'a> {
    resource: &'a Resource,
    sub: Option<&'a SubresourceEntry>,
    schema: &'a str,
    /// `Namespaced`, in an operation's name.
    scope: &'a str,
    /// `ForAllNamespaces`, or the subresource.
    suffix: String,
    /// Of the path itself.
    path_parameters: &'a [&'a str],
}

/// Whether a subresource is an object, not a connection.
pub(super) fn is_object(sub: &SubresourceEntry) -> bool {
    !sub.name.is_answered_by_kubelet() && sub.name != Subresource::Proxy
}

/// All paths of a resource. `schema_of` names a subresource's schema.
pub(super) fn paths(
    resource: &Resource,
    bodies: &Bodies,
    schema_of: impl Fn(&SubresourceEntry) -> String,
) -> Vec<(String, Value)> {
    let root = if resource.group.is_empty() { "/api" } else { "/apis" };
    let base = format!("{root}/{}", resource.api_version());
    let (prefix, scope) =
        if resource.namespaced { ("/namespaces/{namespace}", "Namespaced") } else { ("", "") };
    let collection = format!("{base}{prefix}/{}", resource.plural);
    let of_collection: &[&str] = if resource.namespaced { &["namespace"] } else { &[] };
    let of_item: &[&str] = if resource.namespaced { &["name", "namespace"] } else { &["name"] };
    let objects = resource.subresources.iter().filter(|sub| is_object(sub));
    let subresources: Vec<_> = objects.map(|sub| (sub, schema_of(sub))).collect();
    let new = |schema, path_parameters, suffix: &str| Path {
        resource,
        sub: None,
        schema,
        scope,
        suffix: suffix.to_owned(),
        path_parameters,
    };

    let mut all = Vec::new();
    let path = new(&bodies.object, of_collection, "");
    let verbs = [Verb::List, Verb::Create, Verb::DeleteCollection];
    all.push((collection.clone(), path.entry(&known(&resource.verbs, &verbs), bodies)));

    let path = new(&bodies.object, of_item, "");
    all.push((
        format!("{collection}/{{name}}"),
        path.entry(&known(&resource.verbs, &ITEM[..4]), bodies),
    ));

    if resource.namespaced {
        let path = Path { scope: "", ..new(&bodies.object, &[], "ForAllNamespaces") };
        let entry = path.entry(&known(&resource.verbs, &[Verb::List]), bodies);
        all.push((format!("{base}/{}", resource.plural), entry));
    }
    for (sub, schema) in &subresources {
        let path =
            Path { sub: Some(sub), ..new(schema, of_item, &name::upper_first(sub.name.as_str())) };
        let entry = path.entry(&known(&sub.verbs, &ITEM), bodies);
        all.push((format!("{collection}/{{name}}/{}", sub.name), entry));
    }
    all.into_iter().filter_map(|(path, entry)| Some((path, entry?))).collect()
}

const ITEM: [Verb; 5] = [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete, Verb::Create];

fn known(served: &[Verb], verbs: &[Verb]) -> Vec<Verb> {
    verbs.iter().copied().filter(|verb| served.contains(verb)).collect()
}

impl Path<'_> {
    /// Parameters of all operations belong to the path.
    fn entry(&self, verbs: &[Verb], bodies: &Bodies) -> Option<Value> {
        let names: Vec<Vec<&str>> = verbs.iter().map(|verb| self.parameters(*verb)).collect();
        let mut shared: Vec<&str> = names.first()?.clone();
        shared.retain(|name| names.iter().all(|others| others.contains(name)));
        let mut entry = Map::new();
        for (verb, names) in verbs.iter().zip(&names) {
            let own: Vec<&str> =
                names.iter().filter(|name| !shared.contains(name)).copied().collect();
            entry.insert(method(*verb).to_owned(), self.operation(*verb, &own, bodies));
        }
        shared.extend(self.path_parameters);
        shared.push("pretty");
        shared.sort_unstable();
        entry.insert("parameters".to_owned(), shared.into_iter().map(parameter).collect());
        Some(entry.into())
    }

    fn parameters(&self, verb: Verb) -> Vec<&'static str> {
        let custom = self.resource.is_custom();
        let names = match verb {
            Verb::Get if custom => "resourceVersion",
            Verb::List => parameters::LIST,
            Verb::DeleteCollection if custom => parameters::LIST,
            Verb::Create | Verb::Update | Verb::Patch => parameters::WRITE,
            Verb::Delete => parameters::DELETE,
            Verb::DeleteCollection => parameters::DELETE_COLLECTION,
            _ => "",
        };
        let force = (verb == Verb::Patch).then_some("force");
        names.split_whitespace().chain(force).collect()
    }

    fn operation(&self, verb: Verb, parameters: &[&str], bodies: &Bodies) -> Value {
        let mut operation = Map::new();
        let mut put = |key: &str, value: Value| drop(operation.insert(key.to_owned(), value));
        put("tags", json!([name::tag(self.resource)]));
        put("description", self.description(verb).into());
        put("operationId", self.id(verb).into());
        if !parameters.is_empty() {
            put("parameters", parameters.iter().map(|name| parameter(name)).collect());
        }
        if let Some(body) = self.request_body(verb) {
            put("requestBody", body);
        }
        put("responses", self.responses(verb, bodies));
        put("x-kubernetes-action", action(verb).into());
        put("x-kubernetes-group-version-kind", self.kind());
        operation.into()
    }

    fn id(&self, verb: Verb) -> String {
        let word = match verb {
            Verb::Get => "read",
            Verb::Update => "replace",
            Verb::DeleteCollection => "delete",
            other => other.as_str(),
        };
        let group = name::group_version_camel(self.resource);
        let all = if verb == Verb::DeleteCollection { "Collection" } else { "" };
        format!("{word}{group}{all}{}{}{}", self.scope, self.resource.kind, self.suffix)
    }

    fn description(&self, verb: Verb) -> String {
        let of = self.sub.map(|sub| format!("{} of ", sub.name)).unwrap_or_default();
        let kind = &self.resource.kind;
        match verb {
            Verb::Get => format!("Reads the {of}named {kind}."),
            Verb::Create if self.sub.is_some() => format!("Creates the {of}named {kind}."),
            Verb::Create => format!("Creates a {kind}."),
            Verb::Update => format!("Replaces the {of}named {kind}."),
            Verb::Patch => format!("Changes the {of}named {kind} in part."),
            Verb::Delete => format!("Deletes the named {kind}."),
            Verb::DeleteCollection => format!("Deletes all matching objects of kind {kind}."),
            _ => format!("Lists or watches objects of kind {kind}."),
        }
    }

    fn kind(&self) -> Value {
        let resource = self.resource;
        let ((group, version), kind) = match self.sub {
            Some(sub) => (gv_of(resource, sub), &sub.kind),
            None => ((&*resource.group, &*resource.version), &resource.kind),
        };
        json!({"group": group, "version": version, "kind": kind})
    }

    fn request_body(&self, verb: Verb) -> Option<Value> {
        let media: &[&str] = if self.resource.is_custom() {
            &["application/json", "application/yaml"]
        } else {
            &["*/*"]
        };
        match verb {
            Verb::Create | Verb::Update => {
                Some(json!({"content": content(self.schema, media), "required": true}))
            }
            Verb::Patch => {
                let media = [
                    "application/apply-patch+yaml",
                    "application/json-patch+json",
                    "application/merge-patch+json",
                    "application/strategic-merge-patch+json",
                ];
                // Custom resources have no merge keys for a strategic merge.
                let media = if self.resource.is_custom() { &media[..3] } else { &media[..] };
                Some(json!({"content": content(PATCH, media), "required": true}))
            }
            Verb::Delete => Some(json!({"content": content(DELETE_OPTIONS, media)})),
            Verb::DeleteCollection if !self.resource.is_custom() => {
                Some(json!({"content": content(DELETE_OPTIONS, media)}))
            }
            _ => None,
        }
    }

    fn responses(&self, verb: Verb, bodies: &Bodies) -> Value {
        let codes: &[(&str, &str)] = match verb {
            Verb::Patch if self.resource.is_custom() => &[("200", "OK")],
            Verb::Update | Verb::Patch => &[("200", "OK"), ("201", "Created")],
            Verb::Create => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
            Verb::Delete => &[("200", "OK"), ("202", "Accepted")],
            _ => &[("200", "OK")],
        };
        let schema = match verb {
            Verb::List => &bodies.list,
            Verb::DeleteCollection => STATUS,
            Verb::Delete if !self.answers_deleted() => STATUS,
            _ => self.schema,
        };
        let content = content(schema, self.response_media(verb));
        let mut responses = Map::new();
        for (code, text) in codes {
            responses.insert((*code).to_owned(), json!({"description": text, "content": content}));
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        responses.into()
    }

    fn response_media(&self, verb: Verb) -> &'static [&'static str] {
        match verb {
            _ if self.resource.is_custom() => &["application/json", "application/yaml"],
            Verb::List => &[
                "application/json",
                "application/json;stream=watch",
                "application/vnd.kubernetes.protobuf",
                "application/vnd.kubernetes.protobuf;stream=watch",
                "application/yaml",
            ],
            _ => &["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"],
        }
    }

    fn answers_deleted(&self) -> bool {
        let shape = self.resource.schema.as_ref().and_then(|schema| schema.node().as_struct());
        !self.resource.is_custom()
            && shape.is_some_and(|shape| facts().deleted.contains(&*shape.name))
    }
}

/// The HTTP method of a verb.
fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "post",
        Verb::Update => "put",
        Verb::Patch => "patch",
        Verb::Delete | Verb::DeleteCollection => "delete",
        _ => "get",
    }
}

/// The `x-kubernetes-action` of a verb.
fn action(verb: Verb) -> &'static str {
    match verb {
        Verb::Create | Verb::Update => method(verb),
        _ => verb.as_str(),
    }
}

fn content(schema: &str, media: &[&str]) -> Value {
    let schema = json!({"schema": {"$ref": name::reference(schema)}});
    media.iter().map(|media| ((*media).to_owned(), schema.clone())).collect::<Map<_, _>>().into()
}
