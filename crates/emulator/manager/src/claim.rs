//! Ownership of objects: by owner reference, and by selector for objects without an owner. Pure.

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::Selector;
use serde_json::json;

use crate::action::{Action, Owner, Plan};
use crate::kind::Kind;
use crate::object::{self, ObjectKey};

/// The relation of an owner to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Own,
    /// No controller owns the object, and the selector matches.
    Adopt,
    /// The owner's own object, which the selector no longer matches.
    Release,
    Foreign,
}

fn classify(wanted: Option<&Selector>, owner: &ObjectMeta, object: &ObjectMeta) -> Claim {
    let matches = object::selects(wanted, object.labels.as_ref());
    let leaving = object::is_deleting(owner);
    match object::controller_of(object) {
        Some(other) if other.uid != object::uid(owner) => Claim::Foreign,
        Some(_) if matches || leaving => Claim::Own,
        Some(_) if object::is_deleting(object) => Claim::Own,
        Some(_) => Claim::Release,
        None if matches && !leaving && !object::is_deleting(object) => Claim::Adopt,
        None => Claim::Foreign,
    }
}

/// The objects that belong to the owner. If owner references must change first, the plan that
/// changes them.
pub(crate) fn resolve<'a, T: Metadata<Ty = ObjectMeta>>(
    selector: &LabelSelector,
    (owner_kind, owner): (Kind, &ObjectMeta),
    kind: Kind,
    objects: impl IntoIterator<Item = &'a T>,
) -> Result<Vec<&'a T>, Plan> {
    let (mut changes, mut own) = (Vec::new(), Vec::new());
    let selector = object::workload_selector(selector);
    for object in objects {
        let meta = object.metadata();
        match classify(selector.as_ref(), owner, meta) {
            Claim::Own => own.push(object),
            Claim::Adopt => changes.push(adopt(kind, owner_kind, owner, meta)),
            Claim::Release => changes.push(release(kind, owner, meta)),
            Claim::Foreign => {}
        }
    }
    if changes.is_empty() {
        Ok(own)
    } else {
        Err(Plan { stages: vec![changes], requeue_after: None })
    }
}

fn adopt(kind: Kind, owner_kind: Kind, owner: &ObjectMeta, object: &ObjectMeta) -> Action {
    let mut owners = object.owner_references.clone().unwrap_or_default();
    owners.push(object::owned_by(owner_kind.name(), owner));
    let owner =
        Owner { kind: owner_kind, name: ObjectKey::of(owner), uid: object::uid(owner).to_owned() };
    Action::adopt(owner, kind, object, json!({ "metadata": { "ownerReferences": owners } }))
}

fn release(kind: Kind, owner: &ObjectMeta, object: &ObjectMeta) -> Action {
    let mut owners = object.owner_references.clone().unwrap_or_default();
    owners.retain(|other| other.uid != object::uid(owner));
    Action::patch(kind, object, json!({ "metadata": { "ownerReferences": owners } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn claims_follow_owner_reference_and_selector() {
        let wanted = LabelSelector {
            match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..LabelSelector::default()
        };
        let owner = ObjectMeta { uid: Some("1".to_owned()), ..ObjectMeta::default() };
        let leaving = ObjectMeta { deletion_timestamp: Some(object::time(at(1))), ..owner.clone() };
        let other = ObjectMeta { uid: Some("2".to_owned()), ..ObjectMeta::default() };
        let make = |labelled: bool, by: Option<&ObjectMeta>| ObjectMeta {
            labels: labelled.then(|| [("app".to_owned(), "web".to_owned())].into()),
            owner_references: by.map(|by| vec![object::owned_by("ReplicaSet", by)]),
            ..ObjectMeta::default()
        };
        let cases = [
            (&owner, make(true, Some(&owner)), Claim::Own),
            (&owner, make(false, Some(&owner)), Claim::Release),
            (&leaving, make(false, Some(&owner)), Claim::Own),
            (&owner, make(true, Some(&other)), Claim::Foreign),
            (&owner, make(true, None), Claim::Adopt),
            (&leaving, make(true, None), Claim::Foreign),
            (&owner, make(false, None), Claim::Foreign),
        ];
        for (owner, object, expected) in cases {
            assert_eq!(
                classify(object::workload_selector(&wanted).as_ref(), owner, &object),
                expected,
                "{object:?}"
            );
        }
        let all = classify(
            object::workload_selector(&LabelSelector::default()).as_ref(),
            &owner,
            &make(true, None),
        );
        assert_eq!(all, Claim::Foreign, "an empty selector adopts nothing");
    }
}
