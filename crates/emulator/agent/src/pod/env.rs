//! Command, arguments and environment of a container. Pure: [`Sources`] holds the ConfigMaps and
//! Secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, ObjectFieldSelector, Pod};

use crate::container::Program;

/// The content of a ConfigMap or a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// An object that a container or a volume refers to, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    ConfigMap(String),
    Secret(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConfigMap(name) => write!(f, "configmap {name:?}"),
            Self::Secret(name) => write!(f, "secret {name:?}"),
        }
    }
}

/// The ConfigMaps and Secrets of a Pod that exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(pub(crate) BTreeMap<Source, Data>);

impl Sources {
    /// The content of a source; `None` if it is optional and does not exist.
    pub(crate) fn get(&self, from: &Source, optional: bool) -> Result<Option<Data>, String> {
        match self.0.get(from) {
            None if !optional => Err(format!("{from} not found")),
            found => Ok(found.cloned()),
        }
    }
}

/// Inputs of the downward API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_addresses: &'a [IpAddr],
    pub(crate) node_addresses: &'a [IpAddr],
}

type Variables = Vec<(String, String)>;

fn set(variables: &mut Variables, name: &str, value: String) {
    variables.retain(|(known, _)| known != name);
    variables.push((name.to_owned(), value));
}

/// The environment of a container, with the kubelet's error messages.
pub(crate) fn environment(
    container: &Container,
    facts: Facts<'_>,
    sources: &Sources,
    base: Variables,
) -> Result<Variables, String> {
    let mut variables = base;
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (source, optional) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(map), _) => (Source::ConfigMap(map.name.clone()), map.optional),
            (_, Some(secret)) => (Source::Secret(secret.name.clone()), secret.optional),
            _ => continue,
        };
        let found = sources.get(&source, optional.unwrap_or(false))?;
        for (key, value) in found.into_iter().flatten() {
            set(&mut variables, &format!("{prefix}{key}"), text(value));
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(source)) => value_from(source, facts, sources)?,
            (Some(value), None) => Some(expand(value, &variables)),
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            set(&mut variables, &variable.name, value);
        }
    }
    Ok(variables)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn value_from(
    source: &EnvVarSource,
    facts: Facts<'_>,
    sources: &Sources,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return field_value(field, facts).map(Some);
    }
    let (source, key, optional) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(it), _) => (Source::ConfigMap(it.name.clone()), &it.key, it.optional),
        (_, Some(it)) => (Source::Secret(it.name.clone()), &it.key, it.optional),
        _ => {
            let cure = "use fieldRef, configMapKeyRef or secretKeyRef";
            return Err(format!("this agent does not support this valueFrom: {cure}"));
        }
    };
    let optional = optional.unwrap_or(false);
    let Some(mut found) = sources.get(&source, optional)? else { return Ok(None) };
    match found.remove(key) {
        Some(value) => Ok(Some(text(value))),
        None if optional => Ok(None),
        None => Err(format!("couldn't find key {key} in {source}")),
    }
}

/// A field of the downward API.
pub(crate) fn field_value(field: &ObjectFieldSelector, facts: Facts<'_>) -> Result<String, String> {
    let meta = &facts.pod.metadata;
    let spec = facts.pod.spec.as_ref();
    let joined = |list: &[IpAddr]| list.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let first = |list: &[IpAddr]| list.first().map(IpAddr::to_string).unwrap_or_default();
    let owned = |text: Option<&String>| text.cloned().unwrap_or_default();
    let path = field.field_path.as_str();
    Ok(match path {
        "metadata.name" => owned(meta.name.as_ref()),
        "metadata.namespace" => owned(meta.namespace.as_ref()),
        "metadata.uid" => owned(meta.uid.as_ref()),
        "metadata.labels" => listed(meta.labels.as_ref()),
        "metadata.annotations" => listed(meta.annotations.as_ref()),
        "spec.nodeName" => owned(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => {
            owned(spec.and_then(|spec| spec.service_account_name.as_ref()))
        }
        "status.podIP" => first(facts.pod_addresses),
        "status.podIPs" => joined(facts.pod_addresses),
        "status.hostIP" => first(facts.node_addresses),
        "status.hostIPs" => joined(facts.node_addresses),
        _ => {
            let keyed = |start: &str| path.strip_prefix(start)?.strip_suffix("']");
            if let Some(key) = keyed("metadata.labels['") {
                owned(meta.labels.as_ref().and_then(|labels| labels.get(key)))
            } else if let Some(key) = keyed("metadata.annotations['") {
                owned(meta.annotations.as_ref().and_then(|all| all.get(key)))
            } else {
                return Err(format!("fieldPath {path:?} is not supported"));
            }
        }
    })
}

fn listed(pairs: Option<&BTreeMap<String, String>>) -> String {
    let lines = pairs.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Replaces `$(NAME)` by the variable's value; `$$` is `$`, and unknown names stay.
pub(crate) fn expand(text: &str, variables: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let known = |name: &str| variables.iter().rev().find(|(known, _)| known == name);
        match named.map(|(name, after)| (known(name), after)) {
            Some((Some((_, value)), after)) => {
                out.push_str(value);
                rest = after;
            }
            _ => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

/// The program of a container: a command of the host, or a built-in image.
pub(crate) fn program(
    container: &Container,
    variables: &[(String, String)],
) -> Result<Program, String> {
    let words = |list: &Option<Vec<String>>| -> Vec<String> {
        list.iter().flatten().map(|word| expand(word, variables)).collect()
    };
    let (command, args) = (words(&container.command), words(&container.args));
    let image = container.image.as_deref().unwrap_or_default();
    let built_in = built_in(image);
    match (command.split_first(), built_in) {
        (Some((first, rest)), Some(name)) if is_entry(first, name) => {
            Ok(Program::BuiltIn(name.to_owned(), [rest, &args].concat()))
        }
        (Some(_), _) => Ok(Program::Host([command, args].concat())),
        (None, Some(name)) => Ok(Program::BuiltIn(name.to_owned(), args)),
        (None, None) => Err(format!(
            "image {image:?} is not built into this agent (nearhop/echo, agnhost, pause), and the \
             agent pulls no images: give the container a command that exists on the host"
        )),
    }
}

fn is_entry(word: &str, image: &str) -> bool {
    word.strip_prefix('/').unwrap_or(word) == image
}

/// The short name of a built-in image.
pub(crate) fn built_in(image: &str) -> Option<&'static str> {
    let without_digest = image.split('@').next().unwrap_or_default();
    let last = without_digest.rsplit('/').next().unwrap_or_default();
    let name = last.split(':').next().unwrap_or_default();
    match name {
        "agnhost" => Some("agnhost"),
        "pause" => Some("pause"),
        "echo" if without_digest.ends_with(&format!("nearhop/{last}")) => Some("echo"),
        _ => None,
    }
}

/// The ConfigMaps and Secrets in a container's environment.
pub(crate) fn needs(container: &Container) -> Vec<Source> {
    let mut needed = Vec::new();
    for from in container.env_from.iter().flatten() {
        needed.extend(from.config_map_ref.iter().map(|it| Source::ConfigMap(it.name.clone())));
        needed.extend(from.secret_ref.iter().map(|it| Source::Secret(it.name.clone())));
    }
    for from in container.env.iter().flatten().filter_map(|it| it.value_from.as_ref()) {
        needed.extend(from.config_map_key_ref.iter().map(|it| Source::ConfigMap(it.name.clone())));
        needed.extend(from.secret_key_ref.iter().map(|it| Source::Secret(it.name.clone())));
    }
    needed
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMapKeySelector, EnvVar};

    use super::*;

    #[test]
    fn variables_expand_and_dollars_can_be_escaped() {
        let known = [("A".to_owned(), "1".to_owned()), ("B_C".to_owned(), "$(A)".to_owned())];
        for (text, expected) in [
            ("x$(A)y$(B_C)", "x1y$(A)"),
            ("$$(A) $$$(A)", "$(A) $1"),
            ("$(NONE) $A $( $", "$(NONE) $A $( $"),
            ("a$$b", "a$b"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), ..EnvVar::default() }
    }

    #[test]
    fn variables_see_earlier_ones_and_missing_maps_are_named() {
        let pod = Pod::default();
        let facts = Facts { pod: &pod, pod_addresses: &[], node_addresses: &[] };
        let mut container = Container {
            env: Some(vec![variable("A", "1"), variable("B", "$(A)2"), variable("A", "$(B)3")]),
            ..Container::default()
        };
        let built = environment(&container, facts, &Sources::default(), Vec::new()).unwrap();
        assert_eq!(built, [("B".to_owned(), "12".to_owned()), ("A".to_owned(), "123".to_owned())]);
        let from = EnvVarSource {
            config_map_key_ref: Some(ConfigMapKeySelector {
                name: "settings".into(),
                key: "k".into(),
                optional: None,
            }),
            ..EnvVarSource::default()
        };
        container.env =
            Some(vec![EnvVar { name: "C".into(), value_from: Some(from), value: None }]);
        let why = environment(&container, facts, &Sources::default(), Vec::new()).unwrap_err();
        assert_eq!(why, "configmap \"settings\" not found");
    }

    #[test]
    fn built_in_images_match_by_name() {
        for (image, expected) in [
            ("registry.k8s.io/e2e-test-images/agnhost:2.59", Some("agnhost")),
            ("registry.k8s.io/pause:3.10@sha256:00", Some("pause")),
            ("nearhop/echo", Some("echo")),
            ("docker.io/nearhop/echo:1", Some("echo")),
            ("other/echo", None),
            ("nginx", None),
        ] {
            assert_eq!(built_in(image), expected, "{image}");
        }
    }

    #[test]
    fn commands_run_on_the_host_except_the_images_entrypoint() {
        let run = |image: &str, command: &[&str], args: &[&str]| {
            let words = |list: &[&str]| Some(list.iter().map(|it| (*it).to_owned()).collect());
            let container = Container {
                image: Some(image.to_owned()),
                command: words(command),
                args: words(args),
                ..Container::default()
            };
            program(&container, &[])
        };
        let built_in = |words: &[&str]| {
            Ok(Program::BuiltIn("agnhost".into(), words.iter().map(|it| (*it).into()).collect()))
        };
        assert_eq!(run("x/agnhost:2", &[], &["netexec"]), built_in(&["netexec"]));
        assert_eq!(run("x/agnhost:2", &["/agnhost", "a"], &["b"]), built_in(&["a", "b"]));
        let host = Program::Host(vec!["sh".into(), "-c".into()]);
        assert_eq!(run("x/agnhost:2", &["sh"], &["-c"]), Ok(host));
        assert!(run("nginx", &[], &[]).unwrap_err().contains("nginx"));
    }
}
