//! The schemas of Kubernetes' built-in kinds, parsed once from a table (`facts/types.txt`).
//!
//! It is a table and not Rust structs, because objects are JSON values, and decoding, patching and
//! server-side apply need the schema as data. The paths of resources, and the behaviour of kinds
//! (`nearhop-kinds`), are not here.

use std::sync::{Arc, LazyLock};

use crate::schema::{Schema, Shape, Types};

static TYPES: LazyLock<Arc<Types>> = LazyLock::new(|| {
    let types = Types::parse(include_str!("facts/types.txt"));
    Arc::new(types.expect("the table is part of the program and its test reads it"))
});

/// All structs of the built-in kinds.
pub fn types() -> &'static Arc<Types> {
    &TYPES
}

/// The schema of the struct with this name: `core.v1.ServiceSpec`, `meta.v1.DeleteOptions`.
pub fn schema(struct_name: &str) -> Option<Schema> {
    let id = TYPES.find(struct_name)?;
    Some(Schema::new(Arc::clone(&TYPES), Shape::Struct(id)))
}

/// The schema of a kind. The core group is the empty string.
pub fn schema_of(group: &str, version: &str, kind: &str) -> Option<Schema> {
    let family = match group {
        "" => "core",
        group => group.split('.').next().unwrap_or(group),
    };
    schema(&format!("{family}.{version}.{kind}"))
}

/// The schema of `metadata`, which custom resources share with the built-in kinds.
pub fn object_meta() -> Schema {
    schema("meta.v1.ObjectMeta").expect("the table has ObjectMeta")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{ListType, Node, Presence};

    fn at<'a>(schema: &'a Schema, path: &str) -> Node<'a> {
        path.split('.').fold(schema.node(), |node, step| match step.strip_suffix("[*]") {
            Some(name) => node.child(name).and_then(Node::items).expect(path),
            None => node.child(step).expect(path),
        })
    }

    #[test]
    fn kinds_are_found_by_group() {
        for (group, name) in [
            ("", "core.v1.Service"),
            ("apps", "apps.v1.Deployment"),
            ("discovery.k8s.io", "discovery.v1.EndpointSlice"),
            ("rbac.authorization.k8s.io", "rbac.v1.ClusterRole"),
            ("flowcontrol.apiserver.k8s.io", "flowcontrol.v1.FlowSchema"),
            ("autoscaling", "autoscaling.v2.HorizontalPodAutoscaler"),
            ("apiextensions.k8s.io", "apiextensions.v1.CustomResourceDefinition"),
            ("apiregistration.k8s.io", "apiregistration.v1.APIService"),
            ("meta.k8s.io", "meta.v1.DeleteOptions"),
        ] {
            let (version, kind) =
                name.split_once('.').and_then(|(_, rest)| rest.split_once('.')).unwrap();
            let schema = schema_of(group, version, kind).expect(name);
            assert_eq!(schema.node().as_struct().map(|s| &*s.name), Some(name));
        }
        assert!(schema_of("", "v1", "Nothing").is_none());
        assert!(object_meta().node().child("labels").is_some());
    }

    /// Compares with a sample of a server's OpenAPI document.
    #[test]
    fn merge_keys_match_the_openapi_document() {
        let published = "kind | field | list type with keys | strategic merge key
            core.v1.Service | spec.ports | map:port,protocol | merge=port
            core.v1.Service | metadata.finalizers | set | merge
            core.v1.Service | metadata.ownerReferences | map:uid | merge=uid
            core.v1.Service | spec.clusterIPs | atomic |
            core.v1.Service | status.conditions | map:type | merge=type
            core.v1.Pod | spec.containers | map:name | merge=name
            core.v1.Pod | spec.containers[*].ports | map:containerPort,protocol | merge=containerPort
            core.v1.Pod | spec.topologySpreadConstraints | map:topologyKey,whenUnsatisfiable | merge=topologyKey
            core.v1.Pod | spec.volumes | map:name | merge=name retainkeys
            core.v1.Node | spec.podCIDRs | set | merge
            discovery.v1.EndpointSlice | endpoints | atomic |
            discovery.v1.EndpointSlice | endpoints[*].addresses | set |
            apps.v1.StatefulSet | spec.volumeClaimTemplates | atomic |";
        for line in published.lines().skip(1) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [name, path, list, merge] = cells[..] else { panic!("{line}") };
            let schema = schema(name).expect(name);
            let node = at(&schema, path);
            let found = match node.list_type() {
                ListType::Atomic => "atomic".to_owned(),
                ListType::Set => "set".to_owned(),
                ListType::Map(keys) => format!("map:{}", keys.join(",")),
            };
            assert_eq!(found, list, "{name} {path}");
            let field = node.declared().expect(path);
            let mut words = Vec::new();
            if field.merge {
                words.push(match &field.merge_key {
                    Some(key) => format!("merge={key}"),
                    None => "merge".to_owned(),
                });
            }
            if field.retain_keys {
                words.push("retainkeys".to_owned());
            }
            assert_eq!(words.join(" "), merge, "{name} {path}");
        }
    }

    #[test]
    fn atomic_maps_and_structs_are_marked() {
        for (name, path, atomic) in [
            ("core.v1.Service", "spec.selector", true),
            ("core.v1.Service", "metadata.labels", false),
            ("core.v1.Service", "metadata.ownerReferences[*]", true),
            ("core.v1.Pod", "spec.nodeSelector", true),
            ("core.v1.Pod", "spec", false),
            ("apps.v1.Deployment", "spec.selector", true),
        ] {
            let schema = schema(name).expect(name);
            assert_eq!(at(&schema, path).is_atomic_map(), atomic, "{name} {path}");
        }
    }

    #[test]
    fn presence_and_numbers_match_the_go_structs() {
        let slice = schema("discovery.v1.EndpointSlice").expect("the struct is known");
        let endpoints = at(&slice, "endpoints").declared().expect("the field is declared");
        assert_eq!((endpoints.presence, endpoints.number), (Presence::Always, 2));
    }
}
