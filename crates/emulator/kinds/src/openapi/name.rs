//! Names of schemas, tags and operations.

use crate::resource::Resource;

/// The schema of a built-in struct, from its short name: `core.v1.Service`.
pub(super) fn of_struct(short: &str) -> String {
    // Copies of structs that differ only in how they are written.
    let short = match short {
        "apps.v1.PersistentVolumeClaim" => "core.v1.PersistentVolumeClaim",
        "policy.v1.DeleteOptions" => "meta.v1.DeleteOptions",
        short => short,
    };
    let package = match short.split('.').next().unwrap_or_default() {
        "meta" => "io.k8s.apimachinery.pkg.apis",
        "apiextensions" => "io.k8s.apiextensions-apiserver.pkg.apis",
        "apiregistration" => "io.k8s.kube-aggregator.pkg.apis",
        _ => "io.k8s.api",
    };
    format!("{package}.{short}")
}

/// The schema of a kind of a custom resource: the group from its end, `example.lab.v1.Widget`.
pub(super) fn of_custom(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// A reference to a schema.
pub(super) fn reference(schema: &str) -> String {
    format!("#/components/schemas/{schema}")
}

/// The tag of a group version: `core_v1`, `rbacAuthorization_v1`.
pub(super) fn tag(resource: &Resource) -> String {
    let camel = group_camel(&resource.group);
    format!("{}_{}", lower_first(&camel), resource.version)
}

/// The middle of an operation's name: `CoreV1`.
pub(super) fn group_version_camel(resource: &Resource) -> String {
    format!("{}{}", group_camel(&resource.group), upper_first(&resource.version))
}

/// `scale` as `Scale`.
pub(super) fn upper_first(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn lower_first(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn group_camel(group: &str) -> String {
    match group {
        "" => "Core".to_owned(),
        group => {
            let own = group.strip_suffix(".k8s.io").unwrap_or(group);
            own.split(['.', '-']).map(upper_first).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_names_match_a_real_server() {
        assert_eq!(of_struct("core.v1.Service"), "io.k8s.api.core.v1.Service");
        assert_eq!(
            of_struct("meta.v1.ObjectMeta"),
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(
            of_struct("policy.v1.DeleteOptions"),
            "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
        );
        assert_eq!(of_custom("lab.example", "v1", "Widget"), "example.lab.v1.Widget");
        assert_eq!(group_camel("flowcontrol.apiserver.k8s.io"), "FlowcontrolApiserver");
        assert_eq!(group_camel("lab.example"), "LabExample");
        assert_eq!(upper_first(""), "");
    }
}
