//! What nearhop has written and nobody keeps any more: after a change of `--mode`, and when nearhop
//! leaves a cluster (`--cleanup`).
//!
//! A mode watches only what it keeps, so what the other one left is looked for with lists of their
//! own, page by page. Slices that `replace` left stay: they carry the label of the cluster's own
//! controller, which takes them over, hints and all. Only nearhop's annotation on them would stay
//! for ever, because that controller does not know it.

use http::Method;
use nearhop_api::locator::{API_VERSION, RESOURCE};
use nearhop_core::labels::well_known;
use nearhop_core::{Name, ServiceKey, routing};
use serde_json::{Value, json};

use crate::call::{Call, Caller, FIELD_MANAGER, Failure};
use crate::mode::SERVICE_PROXY;
use crate::tell::apply_conditions;

/// Objects in one page.
const PAGE: usize = 500;
/// Endpoints and Pods are of no interest here.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const WHOLE: &str = "application/json";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// Which of it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What `replace` left and `labelled` does not keep.
    OfReplace,
    /// Everything that nearhop has written.
    Everything,
}

/// How much was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// EndpointSlices managed by nearhop.
    pub slices: usize,
    /// Annotations on EndpointSlices of the cluster's own controller.
    pub annotations: usize,
    /// Services whose conditions were removed.
    pub conditions: usize,
    /// PodLocators.
    pub locators: usize,
}

impl Removed {
    /// Whether there was nothing to remove.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Removes it. What somebody else removed or made anew meanwhile is passed over.
pub(crate) async fn remove(caller: &Caller, scope: Scope) -> Result<Removed, Failure> {
    let mut removed = Removed::default();
    if scope == Scope::Everything {
        removed.slices = remove_slices(caller).await?;
    }
    removed.annotations = remove_annotations(caller).await?;
    removed.conditions = remove_conditions(caller, scope).await?;
    if scope == Scope::Everything {
        removed.locators = remove_locators(caller).await?;
    }
    Ok(removed)
}

async fn remove_slices(caller: &Caller) -> Result<usize, Failure> {
    let ours = managed_by(well_known::NEARHOP_CONTROLLER);
    let found =
        List { path: SLICES, labels: Some(&ours), accept: METADATA_ONLY, what: "EndpointSlices" };
    let found = found.read(caller, |_| true).await?;
    let path = |object: &Object| object.path("/apis/discovery.k8s.io/v1", "endpointslices");
    delete_all(caller, &found, path, "EndpointSlice").await
}

async fn remove_annotations(caller: &Caller) -> Result<usize, Failure> {
    let theirs = managed_by(well_known::IN_TREE_CONTROLLER);
    let list =
        List { path: SLICES, labels: Some(&theirs), accept: METADATA_ONLY, what: "EndpointSlices" };
    let annotated =
        |slice: &Value| slice["metadata"]["annotations"][routing::ANNOTATION].is_string();
    let mut removed = 0;
    for object in list.read(caller, annotated).await? {
        let path = object.path("/apis/discovery.k8s.io/v1", "endpointslices");
        let annotations = json!({routing::ANNOTATION: null});
        // The uid binds it to this life of the slice; whatever else changed stays.
        let body = json!({"metadata": {"uid": object.uid, "annotations": annotations}});
        let call = Call {
            method: Method::PATCH,
            path: format!("{path}?fieldManager={FIELD_MANAGER}"),
            content_type: "application/merge-patch+json",
            body: body.to_string().into_bytes(),
            what: object.what("EndpointSlice"),
        };
        removed += usize::from(is_done(caller.send(call).await)?);
    }
    Ok(removed)
}

async fn remove_conditions(caller: &Caller, scope: Scope) -> Result<usize, Failure> {
    let unlabelled = format!("{}!={SERVICE_PROXY}", well_known::SERVICE_PROXY_NAME);
    let labels = (scope == Scope::OfReplace).then_some(unlabelled.as_str());
    let list = List { path: "/api/v1/services", labels, accept: WHOLE, what: "Services" };
    let mut removed = 0;
    for object in list.read(caller, has_conditions).await? {
        let service = ServiceKey { namespace: object.namespace, name: object.name };
        let call = apply_conditions(&service, &object.uid, &[]);
        removed += usize::from(is_done(caller.send(call).await)?);
    }
    Ok(removed)
}

/// Whether a Service has conditions, and some of its status is ours.
fn has_conditions(service: &Value) -> bool {
    let conditions = service["status"]["conditions"].as_array();
    let managers = service["metadata"]["managedFields"].as_array();
    let ours =
        |entry: &Value| entry["manager"] == FIELD_MANAGER && entry["subresource"] == "status";
    conditions.is_some_and(|all| !all.is_empty())
        && managers.is_some_and(|entries| entries.iter().any(ours))
}

async fn remove_locators(caller: &Caller) -> Result<usize, Failure> {
    let (prefix, what) = (format!("/apis/{API_VERSION}"), "PodLocators");
    let path = format!("{prefix}/{RESOURCE}");
    let list = List { path: &path, labels: None, accept: METADATA_ONLY, what };
    let found = match list.read(caller, |_| true).await {
        // The kind is not defined, so there are none.
        Err(Failure::NotFound { .. }) => return Ok(0),
        found => found?,
    };
    delete_all(caller, &found, |object| object.path(&prefix, RESOURCE), "PodLocator").await
}

async fn delete_all(
    caller: &Caller,
    objects: &[Object],
    path: impl Fn(&Object) -> String,
    kind: &str,
) -> Result<usize, Failure> {
    let mut deleted = 0;
    for object in objects {
        let call = Call {
            method: Method::DELETE,
            path: path(object),
            content_type: "application/json",
            body: json!({"preconditions": {"uid": object.uid}}).to_string().into_bytes(),
            what: object.what(kind),
        };
        deleted += usize::from(is_done(caller.send(call).await)?);
    }
    Ok(deleted)
}

/// Whether a write did something: who is gone, or has another life, needs none.
fn is_done<T>(answer: Result<T, Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(_) => Ok(true),
        Err(
            Failure::NotFound { .. }
            | Failure::Conflict { .. }
            | Failure::NamespaceTerminating { .. },
        ) => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn managed_by(controller: &str) -> String {
    format!("{}={controller}", well_known::MANAGED_BY)
}

/// An object that was found.
struct Object {
    namespace: Name,
    name: Name,
    uid: String,
}

impl Object {
    fn of(item: &Value) -> Self {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace").into(), text("name").into());
        Self { namespace, name, uid: text("uid").to_owned() }
    }

    fn path(&self, prefix: &str, resource: &str) -> String {
        format!("{prefix}/namespaces/{}/{resource}/{}", self.namespace, self.name)
    }

    fn what(&self, kind: &str) -> String {
        format!("{kind} {}/{}", self.namespace, self.name)
    }
}

/// A list of all namespaces.
struct List<'a> {
    path: &'a str,
    labels: Option<&'a str>,
    accept: &'static str,
    what: &'static str,
}

impl List<'_> {
    /// Reads it page by page, and keeps the names of those that are wanted.
    async fn read(
        &self,
        caller: &Caller,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Object>, Failure> {
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let call = Call::get(self.page(&next), format!("the list of {}", self.what));
            let body = caller.send_accepting(call, self.accept).await?;
            let page: Value = serde_json::from_slice(&body).unwrap_or_default();
            let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
            found.extend(items.iter().filter(|item| wanted(item)).map(Object::of));
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                return Ok(found);
            }
        }
    }

    fn page(&self, after: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        if let Some(labels) = self.labels {
            query.append_pair("labelSelector", labels);
        }
        if !after.is_empty() {
            query.append_pair("continue", after);
        }
        format!("{}?{}", self.path, query.finish())
    }
}
