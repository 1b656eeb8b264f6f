//! Validation of volumes: names, one source each, and required fields.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, int, list, text};
use crate::names;

/// In the order of validation, each with its required field.
const SOURCES: &[(&str, &str)] = &[
    ("emptyDir", ""),
    ("hostPath", "path"),
    ("gitRepo", "repository"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("secret", "secretName"),
    ("nfs", "server"),
    ("iscsi", "targetPortal"),
    ("glusterfs", "endpoints"),
    ("flocker", ""),
    ("persistentVolumeClaim", "claimName"),
    ("rbd", "image"),
    ("cinder", "volumeID"),
    ("cephfs", ""),
    ("quobyte", "volume"),
    ("downwardAPI", ""),
    ("fc", ""),
    ("flexVolume", "driver"),
    ("configMap", "name"),
    ("azureFile", "secretName"),
    ("vsphereVolume", "volumePath"),
    ("photonPersistentDisk", "pdID"),
    ("portworxVolume", "volumeID"),
    ("azureDisk", "diskName"),
    ("storageos", ""),
    ("projected", ""),
    ("scaleIO", "gateway"),
    ("csi", "driver"),
    ("ephemeral", ""),
    ("image", ""),
];
const HOST_PATHS: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Validates volumes; returns the names that mounts can use.
pub(super) fn validate_volumes<'a>(
    spec: &'a Value,
    path: &Path<'_>,
    errors: &mut Errors,
) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (index, volume) in list(spec, &["volumes"]).iter().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        validate_source(volume, &path, errors);
        let name = text(volume, &["name"]);
        if name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            errors.invalid_each(path.child("name"), name, names::dns1123_label(name));
        }
        if known.contains(name) {
            errors.duplicate(path.child("name"), name);
        }
        if errors.len() == before {
            known.insert(name);
        }
    }
    known
}

/// Refuses `..` in a path.
pub(super) fn no_backsteps(target: &str, path: &Path<'_>, errors: &mut Errors) {
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

fn validate_source(volume: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut sources =
        SOURCES.iter().filter_map(|(key, needed)| Some((*key, *needed, at(volume, &[key])?)));
    let Some((key, needed, source)) = sources.next() else {
        errors.required(path, "must specify a volume type");
        return;
    };
    validate_fields(key, needed, source, &path.child(key), errors);
    for (key, _, _) in sources {
        errors.forbidden(path.child(key), "may not specify more than 1 volume type");
    }
}

fn validate_fields(key: &str, needed: &str, source: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !needed.is_empty() && text(source, &[needed]).is_empty() {
        errors.required(path.child(needed), "");
    }
    if key == "hostPath" {
        no_backsteps(text(source, &["path"]), &path.child("path"), errors);
        let kind = text(source, &["type"]);
        errors.supported(path.child("type"), kind, &HOST_PATHS);
    }
    if let Some(mode) = int(source, &["defaultMode"]).filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(path.child("defaultMode"), mode, detail);
    }
    if matches!(key, "secret" | "configMap") {
        let items = path.child("items");
        for (index, item) in list(source, &["items"]).iter().enumerate() {
            let item_path = items.index(index);
            for field in ["key", "path"] {
                if text(item, &[field]).is_empty() {
                    errors.required(item_path.child(field), "");
                }
            }
            no_backsteps(text(item, &["path"]), &item_path.child("path"), errors);
        }
    }
}
