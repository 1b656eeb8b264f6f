//! The closed words of a request: its verb, and the subresource that it addresses.

use std::fmt;

/// An enum whose variants are words of the API.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident: $($variant:ident = $text:literal),+ $(,)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`.")] $variant,)+
        }

        impl $name {
            /// The word in paths, discovery and roles.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The variant of a word.
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

words! {
    /// What a request does. `Other` is an HTTP method that the API does not have.
    Verb:
    Get = "get",
    List = "list",
    Watch = "watch",
    Create = "create",
    Update = "update",
    Patch = "patch",
    Delete = "delete",
    DeleteCollection = "deletecollection",
    Other = "other",
}

words! {
    /// A part of an object that has a path of its own.
    Subresource:
    Approval = "approval",
    Attach = "attach",
    Binding = "binding",
    EphemeralContainers = "ephemeralcontainers",
    Eviction = "eviction",
    Exec = "exec",
    Finalize = "finalize",
    Log = "log",
    PortForward = "portforward",
    Proxy = "proxy",
    Resize = "resize",
    Scale = "scale",
    Status = "status",
    Token = "token",
}

impl Subresource {
    /// Whether the kubelet of the Pod's node answers it.
    pub fn is_answered_by_kubelet(self) -> bool {
        self.runs_in_container() || self == Self::Log
    }

    /// Whether its client runs a command in a container, or connects to one.
    pub fn runs_in_container(self) -> bool {
        matches!(self, Self::Attach | Self::Exec | Self::PortForward)
    }
}
