//! Fields that can be absent or have the wrong type, while the other fields of the object stay
//! readable.
//!
//! A derived `Deserialize` rejects the whole object at the first wrong type. [`Field`] instead
//! stores the type that it found, and conversion reports it with its path. Values are read in place
//! without a buffer, and unknown fields are skipped.

use std::fmt;
use std::marker::PhantomData;

use nearhop_core::Name;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A field of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// Absent, or null.
    #[default]
    Absent,
    /// The value.
    Read(T),
    /// Present with the wrong type; contains the type that was found.
    Wrong(&'static str),
}

impl<T> From<Option<T>> for Field<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Read)
    }
}

/// A type that a [`Field`] can contain. It defines the JSON types that it accepts.
pub trait Shape<'de>: Sized {
    /// The expected type, for messages.
    const WANTED: &'static str;

    /// From `true` or `false`.
    fn from_bool(_: bool) -> Option<Self> {
        None
    }

    /// From an integer. A value out of range becomes the largest or the smallest.
    fn from_integer(_: i64) -> Option<Self> {
        None
    }

    /// From any other number.
    fn from_decimal(_: f64) -> Option<Self> {
        None
    }

    /// From a string.
    fn from_text(_: &str) -> Option<Self> {
        None
    }

    /// From an array.
    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    /// From an object.
    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

fn read<T>(value: Option<T>, found: &'static str) -> Field<T> {
    value.map_or(Field::Wrong(found), Field::Read)
}

impl<'de, T: Shape<'de>> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANTED)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(read(T::from_bool(value), "a boolean"))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(read(T::from_integer(value), "a number"))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        Ok(read(T::from_integer(value), "a number"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(read(T::from_decimal(value), "a decimal number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(read(T::from_text(value), "a string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Ok(read(T::from_list(list)?, "a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        Ok(read(T::from_object(object)?, "an object"))
    }
}

impl Shape<'_> for Name {
    const WANTED: &'static str = "a string";

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::from(text))
    }
}

impl Shape<'_> for bool {
    const WANTED: &'static str = "true or false";

    fn from_bool(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Shape<'_> for i64 {
    const WANTED: &'static str = "a whole number";

    fn from_integer(value: i64) -> Option<Self> {
        Some(value)
    }
}

/// An array; an element of the wrong type keeps its position.
pub(crate) type List<T> = Vec<Field<T>>;

impl<'de, T: Shape<'de>> Shape<'de> for List<T> {
    const WANTED: &'static str = "a list";

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut all = Self::new();
        while let Some(element) = list.next_element()? {
            all.push(element);
        }
        Ok(Some(all))
    }
}

/// An object with arbitrary keys: labels, a selector.
pub(crate) type Strings = Vec<(Name, Field<Name>)>;

impl<'de> Shape<'de> for Strings {
    const WANTED: &'static str = "an object";

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let mut all = Self::new();
        while let Some((key, value)) = object.next_entry::<Field<Name>, Field<Name>>()? {
            if let Field::Read(key) = key {
                all.push((key, value));
            }
        }
        Ok(Some(all))
    }
}

/// `IntOrString`, as in `targetPort`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IntOrString {
    Int(i64),
    String(Name),
}

impl Shape<'_> for IntOrString {
    const WANTED: &'static str = "a whole number or a string";

    fn from_integer(value: i64) -> Option<Self> {
        Some(Self::Int(value))
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::String(Name::from(text)))
    }
}

/// A `Quantity` as text; the API server also accepts a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantity(pub(crate) Name);

impl Shape<'_> for Quantity {
    const WANTED: &'static str = "a quantity";

    fn from_integer(value: i64) -> Option<Self> {
        Some(Self(Name::from(value.to_string())))
    }

    fn from_decimal(value: f64) -> Option<Self> {
        Some(Self(Name::from(value.to_string())))
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self(Name::from(text)))
    }
}
