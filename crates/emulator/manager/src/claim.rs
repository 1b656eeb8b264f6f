//! Whose an object is: by owner reference, and by selector where there is none. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;

use crate::action::{Action, Owner};
use crate::kind::Kind;
use crate::object::{self, Name};
use crate::selector;

/// What an owner has to do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Own,
    /// Nobody's, and it matches.
    Adopt,
    /// Its own, and it no longer matches.
    Release,
    Foreign,
}

pub(crate) fn judge(wanted: &LabelSelector, owner: &ObjectMeta, object: &ObjectMeta) -> Claim {
    let matches = !selector::is_empty(wanted) && selector::matches(wanted, object.labels.as_ref());
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

/// Makes an object the owner's.
pub(crate) fn adopt(
    kind: Kind,
    owner_kind: Kind,
    owner: &ObjectMeta,
    object: &ObjectMeta,
) -> Action {
    let mut owners = object.owner_references.clone().unwrap_or_default();
    owners.push(object::owned_by(owner_kind.name(), owner));
    let owner =
        Owner { kind: owner_kind, name: Name::of(owner), uid: object::uid(owner).to_owned() };
    Action::adopt(owner, kind, object, json!({ "metadata": { "ownerReferences": owners } }))
}

/// Lets go of an object.
pub(crate) fn release(kind: Kind, owner: &ObjectMeta, object: &ObjectMeta) -> Action {
    let mut owners = object.owner_references.clone().unwrap_or_default();
    owners.retain(|other| other.uid != object::uid(owner));
    Action::patch(kind, object, json!({ "metadata": { "ownerReferences": owners } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn claims_follow_reference_and_selector() {
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
            assert_eq!(judge(&wanted, owner, &object), expected, "{object:?}");
        }
        let all = judge(&LabelSelector::default(), &owner, &make(true, None));
        assert_eq!(all, Claim::Foreign, "an empty selector takes nothing");
    }
}
