//! Reads fields and records their problems.

use std::fmt::{Arguments, Display};

use nearhop_core::problem::quote;
use nearhop_core::{Kind, Labels, Name, Problem, Protocol, Subject};

use super::Converted;
use crate::Meta;
use crate::field::{Field, List, Shape, Strings};
use crate::wire::{self, Metadata};

/// Reads the fields of one object. Paths are formatted only for a problem.
pub(super) struct Reader {
    subject: Subject,
    problems: Vec<Problem>,
}

/// The identity of an object, and its other metadata.
pub(super) struct Identity {
    /// Namespace, empty for kinds without one.
    pub(super) namespace: Name,
    pub(super) name: Name,
    pub(super) metadata: Metadata,
}

/// Reads an object with a function. An object without a name is skipped, because a change needs
/// one.
pub(super) fn read_object<T>(
    kind: Kind,
    metadata: Field<Metadata>,
    read: impl FnOnce(&mut Reader, Identity) -> T,
) -> Converted<T> {
    let unnamed = Subject::Unknown(Name::from(format!("of kind {kind}")));
    let mut reader = Reader { subject: unnamed, problems: Vec::new() };
    let meta = Meta::of(&metadata);
    let value = reader.identify(kind, metadata).map(|identity| {
        let (namespace, name) = (identity.namespace.clone(), identity.name.clone());
        reader.subject = kind.reference(namespace, name).into();
        read(&mut reader, identity)
    });
    Converted { value, meta, problems: reader.problems }
}

impl Reader {
    fn identify(&mut self, kind: Kind, metadata: Field<Metadata>) -> Option<Identity> {
        let mut metadata = self.take(metadata, format_args!("metadata")).unwrap_or_default();
        let namespace = if kind.is_namespaced() {
            self.identity(&mut metadata.namespace, "metadata.namespace")
        } else {
            Some(Name::from(""))
        };
        let name = self.identity(&mut metadata.name, "metadata.name");
        Some(Identity { namespace: namespace?, name: name?, metadata })
    }

    fn identity(&mut self, field: &mut Field<Name>, at: &'static str) -> Option<Name> {
        match std::mem::take(field) {
            Field::Read(name) if !name.is_empty() => return Some(name),
            Field::Wrong(found) => self.wrong_kind::<Name>(found, format_args!("{at}")),
            _ => self.problem(at, "missing", "name the object; it is ignored until then"),
        }
        None
    }

    pub(super) fn problem(
        &mut self,
        at: impl Display,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.problems.push(Problem::new(self.subject.clone(), at.to_string(), cause, cure));
    }

    fn wrong_kind<'de, T: Shape<'de>>(&mut self, found: &str, at: Arguments<'_>) {
        let cause = format!("is {found}, not {}", T::WANTED);
        self.problem(at, cause, format!("give {}; it counts as unset until then", T::WANTED));
    }

    /// The value of a field. A value of the wrong type is recorded as a problem and left out.
    pub(super) fn take<'de, T: Shape<'de>>(
        &mut self,
        field: Field<T>,
        at: Arguments<'_>,
    ) -> Option<T> {
        match field {
            Field::Absent => None,
            Field::Read(value) => Some(value),
            Field::Wrong(found) => {
                self.wrong_kind::<T>(found, at);
                None
            }
        }
    }

    /// The value of an element of a list or a map. In this position null is an invalid value, not
    /// an absent one.
    pub(super) fn element<'de, T: Shape<'de>>(
        &mut self,
        field: Field<T>,
        at: Arguments<'_>,
    ) -> Option<T> {
        match field {
            Field::Absent => self.take(Field::Wrong("null"), at),
            field => self.take(field, at),
        }
    }

    /// The valid elements of a list, with their positions.
    pub(super) fn list<'de, T: Shape<'de>>(
        &mut self,
        field: Field<List<T>>,
        at: Arguments<'_>,
    ) -> Vec<(usize, T)> {
        let all = self.take(field, at).unwrap_or_default();
        let mut sound = Vec::with_capacity(all.len());
        for (i, element) in all.into_iter().enumerate() {
            let element = self.element(element, format_args!("{at}[{i}]"));
            sound.extend(element.map(|element| (i, element)));
        }
        sound
    }

    /// Labels; an unreadable pair is left out.
    pub(super) fn labels(&mut self, field: Field<Strings>, at: Arguments<'_>) -> Labels {
        let pairs = self.take(field, at).unwrap_or_default();
        self.pairs(pairs, at).into_iter().collect()
    }

    /// UIDs of the owners of this kind in v1.
    pub(super) fn owners(
        &mut self,
        field: Field<List<wire::OwnerReference>>,
        wanted: &str,
    ) -> Vec<Name> {
        self.named_owners(field, wanted).into_iter().map(|(_, uid)| uid).collect()
    }

    /// Names and UIDs of the owners of this kind in v1.
    pub(super) fn named_owners(
        &mut self,
        field: Field<List<wire::OwnerReference>>,
        wanted: &str,
    ) -> Vec<(Name, Name)> {
        let mut owners = Vec::new();
        for (i, owner) in self.list(field, format_args!("metadata.ownerReferences")) {
            let mut text = |field: Field<Name>, name: &str| {
                self.take(field, format_args!("metadata.ownerReferences[{i}].{name}"))
            };
            let kind = text(owner.kind, "kind").is_some_and(|kind| kind == wanted);
            let version =
                text(owner.api_version, "apiVersion").is_some_and(|version| version == "v1");
            if kind && version {
                let name = text(owner.name, "name").unwrap_or_else(|| Name::from(""));
                owners.extend(text(owner.uid, "uid").map(|uid| (name, uid)));
            }
        }
        owners
    }

    /// A selector. If a pair is unreadable, the whole selector counts as absent: without this pair
    /// it would select too many Pods.
    pub(super) fn selector(&mut self, field: Field<Strings>, at: Arguments<'_>) -> Option<Labels> {
        let pairs = self.take(field, at)?;
        let wanted = pairs.len();
        let sound = self.pairs(pairs, at);
        (sound.len() == wanted).then(|| sound.into_iter().collect())
    }

    fn pairs(&mut self, pairs: Strings, at: Arguments<'_>) -> Vec<(Name, Name)> {
        let mut sound = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let value = self.element(value, format_args!("{at}[{key}]"));
            sound.extend(value.map(|value| (key, value)));
        }
        sound
    }

    /// Parses a text with a function. An invalid text is recorded as a problem and left out. An
    /// empty text counts as unset, as in the API's defaulting.
    pub(super) fn text<T>(
        &mut self,
        field: Field<Name>,
        at: Arguments<'_>,
        read: impl FnOnce(&str) -> Option<T>,
        wanted: &str,
    ) -> Option<T> {
        let text = self.take(field, at).filter(|text| !text.is_empty())?;
        let value = read(&text);
        if value.is_none() {
            let cure = format!("give {wanted}; it counts as unset until then");
            self.problem(at, format!("{} is not {wanted}", quote(&text)), cure);
        }
        value
    }

    /// A protocol; TCP if the field is absent, nothing if it is invalid.
    pub(super) fn protocol(&mut self, field: Field<Name>, at: Arguments<'_>) -> Option<Protocol> {
        let before = self.problems.len();
        let protocol = self.text(field, at, Protocol::parse, "TCP, UDP or SCTP");
        let sound = self.problems.len() == before;
        sound.then(|| protocol.unwrap_or_default())
    }

    /// A number in the range of ports, including 0: the core reports a 0 if it matters.
    pub(super) fn port(&mut self, number: i64, at: Arguments<'_>) -> Option<u16> {
        let port = u16::try_from(number).ok();
        if port.is_none() {
            let cure = "give a port from 1 to 65535; it counts as unset until then";
            self.problem(at, format!("{number} is not a port"), cure);
        }
        port
    }

    /// Reports a port 0 for which the core would report the wrong position.
    pub(super) fn zero_port(&mut self, at: Arguments<'_>) {
        let cure = "give a port from 1 to 65535; this port is not served until then";
        self.problem(at, "0 is not a port", cure);
    }
}
