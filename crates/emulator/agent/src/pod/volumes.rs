//! Volumes of a Pod: their content (pure) and their files.
//!
//! Files are written once when the Pod starts; a later change of a ConfigMap reaches new Pods only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, EmptyDirVolumeSource, KeyToPath, Pod, ProjectedVolumeSource,
    Volume,
};
use nearhop_core::quantity::parse_milli;

use super::env::{Facts, Source, Sources, expand, field_value};
use crate::container::{Access, Identity, Mount};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A tmpfs of this size in bytes.
    Empty { size: u64 },
    /// Files by path, with their modes.
    Files(BTreeMap<String, (Vec<u8>, u32)>),
}

/// Why a sandbox or a volume cannot be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// It may succeed later.
    Retryable(String),
    /// It never succeeds.
    Permanent(String),
}

const DEFAULT_MODE: u32 = 0o644;

/// The default size of an emptyDir in bytes.
const DEFAULT_SIZE: u64 = 256 << 20;

/// The largest total size of a Pod's emptyDirs in bytes.
const LARGEST_SIZE: u64 = 4 << 30;

/// The ConfigMaps and Secrets in a Pod's volumes.
pub(crate) fn needs(pod: &Pod) -> Vec<Source> {
    let mut needed = Vec::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        needed.extend(volume.config_map.iter().map(|it| Source::ConfigMap(it.name.clone())));
        let secrets = volume.secret.iter().filter_map(|it| it.secret_name.clone());
        needed.extend(secrets.map(Source::Secret));
        for source in volume.projected.iter().flat_map(|it| it.sources.iter().flatten()) {
            needed.extend(source.config_map.iter().map(|it| Source::ConfigMap(it.name.clone())));
            needed.extend(source.secret.iter().map(|it| Source::Secret(it.name.clone())));
        }
    }
    needed
}

pub(crate) fn content(
    volume: &Volume,
    facts: Facts<'_>,
    sources: &Sources,
) -> Result<Content, SetupError> {
    let mode =
        |mode: Option<i32>| mode.and_then(|it| u32::try_from(it).ok()).unwrap_or(DEFAULT_MODE);
    if let Some(empty) = &volume.empty_dir {
        return Ok(Content::Empty { size: size(&volume.name, empty)? });
    }
    let mut files = BTreeMap::new();
    if let Some(map) = &volume.config_map {
        let from = Source::ConfigMap(map.name.clone());
        let part = Part::new(from, map.items.as_deref(), map.optional);
        part.add_to(&mut files, sources, mode(map.default_mode))?;
    } else if let Some(secret) = &volume.secret {
        let from = Source::Secret(secret.secret_name.clone().unwrap_or_default());
        let part = Part::new(from, secret.items.as_deref(), secret.optional);
        part.add_to(&mut files, sources, mode(secret.default_mode))?;
    } else if let Some(downward) = &volume.downward_api {
        let items = downward.items.as_deref().unwrap_or_default();
        add_fields(&mut files, items, facts, mode(downward.default_mode))?;
    } else if let Some(projected) = &volume.projected {
        project(&mut files, projected, facts, sources, mode(projected.default_mode))?;
    } else {
        return Err(SetupError::Permanent(format!(
            "volume {:?} has a type that this agent does not support: use emptyDir, configMap, \
             secret, downwardAPI or projected",
            volume.name
        )));
    }
    Ok(Content::Files(files))
}

/// The size of an emptyDir. All are in memory, so the kernel enforces the limit; a kubelet checks
/// from time to time and evicts.
fn size(name: &str, volume: &EmptyDirVolumeSource) -> Result<u64, SetupError> {
    let Some(limit) = volume.size_limit.as_ref() else { return Ok(DEFAULT_SIZE) };
    let wrong = || format!("volume {name:?}: emptyDir.sizeLimit {:?} is not a quantity", limit.0);
    match bytes(&limit.0) {
        // A kubelet treats 0 as unset.
        Some(0) => Ok(DEFAULT_SIZE),
        Some(bytes) => Ok(bytes),
        None => Err(SetupError::Permanent(wrong())),
    }
}

/// A quantity of memory in bytes, rounded up.
fn bytes(text: &str) -> Option<u64> {
    let milli = u128::try_from(parse_milli(text)?).ok()?;
    u64::try_from(milli.div_ceil(1000)).ok()
}

/// Checks the total size of a Pod's emptyDirs.
pub(crate) fn check_room<'a>(
    contents: impl Iterator<Item = &'a Content>,
) -> Result<(), SetupError> {
    let sizes = contents.map(|content| match content {
        Content::Empty { size } => *size,
        Content::Files(_) => 0,
    });
    let all = sizes.fold(0, u64::saturating_add);
    if all <= LARGEST_SIZE {
        return Ok(());
    }
    let (all, most) = (all >> 20, LARGEST_SIZE >> 20);
    Err(SetupError::Permanent(format!(
        "the Pod's emptyDirs may have {most}Mi together, and ask for {all}Mi: set smaller ones in \
         emptyDir.sizeLimit, which is {}Mi where it is not set",
        DEFAULT_SIZE >> 20
    )))
}

type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// The part of a ConfigMap or a Secret that a volume contains.
struct Part<'a> {
    source: Source,
    items: &'a [KeyToPath],
    optional: bool,
}

impl<'a> Part<'a> {
    fn new(source: Source, items: Option<&'a [KeyToPath]>, optional: Option<bool>) -> Self {
        Self { source, items: items.unwrap_or_default(), optional: optional.unwrap_or(false) }
    }

    fn add_to(self, files: &mut Files, sources: &Sources, mode: u32) -> Result<(), SetupError> {
        let data = sources.get(&self.source, self.optional).map_err(SetupError::Retryable)?;
        let mut data = data.unwrap_or_default();
        if self.items.is_empty() {
            files.extend(data.into_iter().map(|(key, value)| (key, (value, mode))));
            return Ok(());
        }
        for item in self.items {
            let own = item.mode.and_then(|it| u32::try_from(it).ok()).unwrap_or(mode);
            match data.remove(&item.key) {
                Some(value) => drop(files.insert(item.path.clone(), (value, own))),
                None if self.optional => {}
                None => {
                    let what = format!("references non-existent key: {}", item.key);
                    return Err(SetupError::Retryable(what));
                }
            }
        }
        Ok(())
    }
}

fn add_fields(
    files: &mut Files,
    items: &[DownwardAPIVolumeFile],
    facts: Facts<'_>,
    mode: u32,
) -> Result<(), SetupError> {
    for item in items {
        let Some(field) = &item.field_ref else {
            let what = "this agent does not support downwardAPI files without fieldRef";
            return Err(SetupError::Permanent(format!("{what} ({})", item.path)));
        };
        let own = item.mode.and_then(|it| u32::try_from(it).ok()).unwrap_or(mode);
        let value = field_value(field, facts).map_err(SetupError::Permanent)?;
        files.insert(item.path.clone(), (value.into_bytes(), own));
    }
    Ok(())
}

fn project(
    files: &mut Files,
    projected: &ProjectedVolumeSource,
    facts: Facts<'_>,
    sources: &Sources,
    mode: u32,
) -> Result<(), SetupError> {
    for source in projected.sources.iter().flatten() {
        if let Some(map) = &source.config_map {
            // The CA comes with a token; a Pod without API access does not need it.
            let optional = map.optional.or((map.name == "kube-root-ca.crt").then_some(true));
            let from = Source::ConfigMap(map.name.clone());
            Part::new(from, map.items.as_deref(), optional).add_to(files, sources, mode)?;
        } else if let Some(secret) = &source.secret {
            let from = Source::Secret(secret.name.clone());
            let part = Part::new(from, secret.items.as_deref(), secret.optional);
            part.add_to(files, sources, mode)?;
        } else if let Some(downward) = &source.downward_api {
            add_fields(files, downward.items.as_deref().unwrap_or_default(), facts, mode)?;
        }
        // The agent has no ServiceAccount tokens; the volume lacks the file.
    }
    Ok(())
}

/// Creates a volume's directory and its files.
pub(crate) fn write(directory: &Path, content: &Content, owner: Identity) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    match content {
        // Its files are in memory.
        Content::Empty { .. } => Ok(()),
        Content::Files(files) => files.iter().try_for_each(|(path, (bytes, mode))| {
            let relative = Path::new(path);
            if !stays_inside(relative) {
                return Err(io::Error::other(format!("path {path:?} leaves the volume")));
            }
            let file = directory.join(relative);
            fs::create_dir_all(file.parent().unwrap_or(directory))?;
            fs::write(&file, bytes)?;
            fs::set_permissions(&file, Permissions::from_mode(mode & 0o777))?;
            chown(&file, Some(owner.uid), Some(owner.gid))
        }),
    }
}

fn stays_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The volume mounts of a container, parents first.
pub(crate) fn mounts(
    container: &Container,
    pod: &Pod,
    directory: &Path,
    variables: &[(String, String)],
) -> Result<Vec<Mount>, String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let by_name: BTreeMap<&str, &Volume> = volumes.map(|it| (it.name.as_str(), it)).collect();
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = by_name.get(mount.name.as_str());
        let volume = volume.ok_or_else(|| format!("volumeMounts: no volume {:?}", mount.name))?;
        let path = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(path)) => expand(path, variables),
            _ => String::new(),
        };
        if !stays_inside(Path::new(&path)) {
            return Err(format!("volumeMounts: subPath {path:?} leaves volume {:?}", mount.name));
        }
        let shared = volume.empty_dir.is_some() && !mount.read_only.unwrap_or(false);
        let access = if shared { Access::Write } else { Access::Read };
        mounts.push(Mount {
            volume: directory.join(&mount.name),
            sub_path: path.into(),
            target: PathBuf::from(&mount.mount_path),
            access,
        });
    }
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    let targets: BTreeSet<&PathBuf> = mounts.iter().map(|mount| &mount.target).collect();
    if targets.len() < mounts.len() {
        return Err("volumeMounts: two of them have one mountPath".to_owned());
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        ConfigMapVolumeSource, HostPathVolumeSource, PodSpec, VolumeMount,
    };
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn sources() -> Sources {
        let data = [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())];
        Sources([(Source::ConfigMap("m".to_owned()), data.into())].into())
    }

    fn map_volume(name: &str, items: Option<Vec<KeyToPath>>) -> Volume {
        let config_map = ConfigMapVolumeSource {
            name: name.to_owned(),
            items,
            ..ConfigMapVolumeSource::default()
        };
        Volume { name: "v".to_owned(), config_map: Some(config_map), ..Volume::default() }
    }

    #[test]
    fn unsupported_volumes_fail_and_missing_maps_are_retried() {
        let pod = Pod::default();
        let facts = Facts { pod: &pod, pod_addresses: &[], node_addresses: &[] };
        let host = HostPathVolumeSource { path: "/".to_owned(), ..HostPathVolumeSource::default() };
        let volume = Volume { name: "h".into(), host_path: Some(host), ..Volume::default() };
        assert!(matches!(content(&volume, facts, &sources()), Err(SetupError::Permanent(_))));
        let missing = content(&map_volume("none", None), facts, &sources());
        assert!(matches!(missing, Err(SetupError::Retryable(_))));
        let all = content(&map_volume("m", None), facts, &sources()).unwrap();
        let Content::Files(files) = all else { panic!("it holds files") };
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a", "b"]);
        let one = KeyToPath { key: "b".into(), path: "x/y".into(), mode: Some(0o600) };
        let chosen = content(&map_volume("m", Some(vec![one])), facts, &sources()).unwrap();
        let file = ("x/y".to_owned(), (b"2".to_vec(), 0o600));
        assert_eq!(chosen, Content::Files(BTreeMap::from([file])));
    }

    #[test]
    fn empty_dir_sizes_are_parsed_and_limited() {
        let asked = |limit: Option<&str>| {
            let size_limit = limit.map(|text| Quantity(text.to_owned()));
            size("v", &EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() })
        };
        let amounts = [
            (None, DEFAULT_SIZE),
            (Some("0"), DEFAULT_SIZE),
            (Some("1Mi"), 1 << 20),
            (Some("1.5Gi"), 3 << 29),
            (Some("500M"), 500_000_000),
            (Some("1e3"), 1000),
            (Some("1500m"), 2),
        ];
        for (limit, expected) in amounts {
            assert_eq!(asked(limit), Ok(expected), "{limit:?}");
        }
        assert!(
            matches!(asked(Some("much")), Err(SetupError::Permanent(why)) if why.contains("\"v\""))
        );
        let of = |sizes: &[u64]| {
            let contents: Vec<_> =
                sizes.iter().map(|size| Content::Empty { size: *size }).collect();
            check_room(contents.iter())
        };
        assert_eq!(of(&[DEFAULT_SIZE; 16]), Ok(()));
        assert!(of(&[DEFAULT_SIZE; 17]).is_err() && of(&[u64::MAX, u64::MAX]).is_err());
    }

    #[test]
    fn paths_cannot_leave_the_volume() {
        let mount = |sub_path: &str| VolumeMount {
            name: "v".into(),
            mount_path: "/data".into(),
            sub_path: Some(sub_path.into()),
            ..VolumeMount::default()
        };
        let volume = Volume {
            name: "v".into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        };
        let spec = PodSpec { volumes: Some(vec![volume]), ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let with = |sub_path: &str| Container {
            volume_mounts: Some(vec![mount(sub_path)]),
            ..Container::default()
        };
        let found = mounts(&with("a/b"), &pod, Path::new("/pods"), &[]).unwrap();
        assert_eq!(found[0].volume, Path::new("/pods/v"));
        assert_eq!(found[0].sub_path, Path::new("a/b"));
        assert_eq!(found[0].access, Access::Write);
        assert!(mounts(&with("../other"), &pod, Path::new("/pods"), &[]).is_err());
        assert!(mounts(&with("/etc"), &pod, Path::new("/pods"), &[]).is_err());
    }
}
