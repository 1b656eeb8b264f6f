//! Removes the objects and fields that nearhop wrote and that no controller updates any more: after
//! a change of `--mode`, and with `--cleanup`.
//!
//! A mode watches only the objects that it writes, so this module lists those of the other mode,
//! page by page. Slices of `replace` mode stay: they have the label of the cluster's own
//! controller, which manages them afterwards, hints included. This module only removes nearhop's
//! annotation from them, because that controller does not know it.

use nearhop_core::labels::well_known;
use nearhop_core::{Kind, ObjectRef, routing};
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};
use serde_json::{Value, json};

use crate::FIELD_MANAGER;
use crate::mode::SERVICE_PROXY;
use crate::status::write::apply_conditions;

/// The number of objects per page.
const PAGE: usize = 500;
/// The list has metadata only: endpoints and Pods' labels are not used here.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const WHOLE: &str = "application/json";

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What `replace` wrote and `labelled` does not update.
    OfReplace,
    /// Everything that nearhop wrote.
    Everything,
}

/// The number of objects that were cleaned up.
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
    /// Whether nothing was removed.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Removes it. Ignores objects that another client deleted or recreated in the meantime.
pub(crate) async fn remove(sender: &ApiSender, scope: Scope) -> Result<Removed, ApiFailure> {
    let mut removed = Removed::default();
    if scope == Scope::Everything {
        removed.slices = remove_slices(sender).await?;
    }
    removed.annotations = remove_annotations(sender).await?;
    removed.conditions = remove_conditions(sender, scope).await?;
    if scope == Scope::Everything {
        removed.locators = remove_locators(sender).await?;
    }
    Ok(removed)
}

async fn remove_slices(sender: &ApiSender) -> Result<usize, ApiFailure> {
    let ours = managed_by(well_known::NEARHOP_CONTROLLER);
    let list = List { kind: Kind::Slice, labels: Some(&ours), accept: METADATA_ONLY };
    delete_all(sender, &list.read(sender, |_| true).await?).await
}

async fn remove_annotations(sender: &ApiSender) -> Result<usize, ApiFailure> {
    let theirs = managed_by(well_known::IN_TREE_CONTROLLER);
    let list = List { kind: Kind::Slice, labels: Some(&theirs), accept: METADATA_ONLY };
    let annotated =
        |slice: &Value| slice["metadata"]["annotations"][routing::ANNOTATION].is_string();
    let mut removed = 0;
    for (slice, uid) in list.read(sender, annotated).await? {
        let annotations = json!({routing::ANNOTATION: null});
        // Because of the UID, the patch does not apply to a new slice with the same name.
        let body = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let call = ApiCall::merge_patch(slice.path(), &body, slice.to_string());
        removed += usize::from(is_done(sender.send(call).await)?);
    }
    Ok(removed)
}

async fn remove_conditions(sender: &ApiSender, scope: Scope) -> Result<usize, ApiFailure> {
    let unlabelled = format!("{}!={SERVICE_PROXY}", well_known::SERVICE_PROXY_NAME);
    let labels = (scope == Scope::OfReplace).then_some(unlabelled.as_str());
    let list = List { kind: Kind::Service, labels, accept: WHOLE };
    let mut removed = 0;
    for (object, uid) in list.read(sender, has_conditions).await? {
        if let ObjectRef::Service(service) = object {
            let call = apply_conditions(&service, &uid, &[]);
            removed += usize::from(is_done(sender.send(call).await)?);
        }
    }
    Ok(removed)
}

/// Whether a Service has conditions, and nearhop owns a part of its status.
fn has_conditions(service: &Value) -> bool {
    let conditions = service["status"]["conditions"].as_array();
    let managers = service["metadata"]["managedFields"].as_array();
    let ours =
        |entry: &Value| entry["manager"] == FIELD_MANAGER && entry["subresource"] == "status";
    conditions.is_some_and(|all| !all.is_empty())
        && managers.is_some_and(|entries| entries.iter().any(ours))
}

async fn remove_locators(sender: &ApiSender) -> Result<usize, ApiFailure> {
    let list = List { kind: Kind::Locator, labels: None, accept: METADATA_ONLY };
    let found = match list.read(sender, |_| true).await {
        // The CRD is missing, so there are no PodLocators.
        Err(ApiFailure::NotFound { .. }) => return Ok(0),
        found => found?,
    };
    delete_all(sender, &found).await
}

async fn delete_all(
    sender: &ApiSender,
    objects: &[(ObjectRef, String)],
) -> Result<usize, ApiFailure> {
    let mut deleted = 0;
    for (object, uid) in objects {
        let call = ApiCall::delete(object.path(), uid, None, object.to_string());
        deleted += usize::from(is_done(sender.send(call).await)?);
    }
    Ok(deleted)
}

/// Whether a write changed the object. An object that is gone or was recreated needs no write.
fn is_done<T>(reply: Result<T, ApiFailure>) -> Result<bool, ApiFailure> {
    match reply {
        Ok(_) => Ok(true),
        Err(
            ApiFailure::NotFound { .. }
            | ApiFailure::Conflict { .. }
            | ApiFailure::NamespaceTerminating { .. },
        ) => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn managed_by(controller: &str) -> String {
    format!("{}={controller}", well_known::MANAGED_BY)
}

/// A list over all namespaces.
struct List<'a> {
    kind: Kind,
    labels: Option<&'a str>,
    accept: &'static str,
}

impl List<'_> {
    /// Reads the list page by page, and returns the objects that match, with their UIDs.
    async fn read(
        &self,
        sender: &ApiSender,
        matches: impl Fn(&Value) -> bool,
    ) -> Result<Vec<(ObjectRef, String)>, ApiFailure> {
        let object = |item: &Value| {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default();
            let name = self.kind.reference(text("namespace").into(), text("name").into());
            (name, text("uid").to_owned())
        };
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let what = format!("the list of {}s", self.kind);
            let call = ApiCall { accept: self.accept, ..ApiCall::get(self.page(&next), what) };
            let page: Value = sender.send_json(call).await?;
            let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
            found.extend(items.iter().filter(|item| matches(item)).map(object));
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
        format!("{}?{}", self.kind.path(None), query.finish())
    }
}
