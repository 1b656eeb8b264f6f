//! Attacks of hostile Pods have the outcomes in docs/security.md.
//!
//! Each row of `hostile.json` has an attack (see `attack`) and its outcome. All Pods run at once,
//! beside an ordinary Pod that must not be affected.

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::socket::exec;
use crate::world::{Test, World};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("hostile_pods_cannot_write_the_hosts_files", || Box::pin(cannot_write_host())),
    ("hostile_sub_paths_do_not_leave_their_volume", || Box::pin(sub_path_stays())),
    ("hostile_pods_inherit_no_open_files", || Box::pin(inherit_no_files())),
    ("hostile_pods_fail_as_documented", || Box::pin(fail_as_documented())),
];

const SECURITY: &str = include_str!("../../../../../docs/security.md");

/// One hostile Pod.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    row: String,
    attack: Vec<String>,
    /// An init container's attack on the shared volume.
    first: Option<Vec<String>>,
    /// A sidecar's attack on the shared volume.
    beside: Option<Vec<String>>,
    /// The possible outcomes.
    #[serde(default)]
    outcome: Vec<String>,
    /// The container does not start, with this event.
    event: Option<String>,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    container: Value,
}

impl Row {
    fn manifest(&self, words: &BTreeMap<&str, String>) -> Value {
        let put = |word: &String| {
            words.iter().fold(word.clone(), |text, (name, value)| text.replace(name, value))
        };
        let container = |name: &str, attack: &[String]| {
            let mut command = vec!["/.nearhop".to_owned(), "attack".to_owned()];
            command.extend(attack.iter().map(put));
            json!({ "name": name, "image": "x", "command": command })
        };
        let mut main = container("c", &self.attack);
        merge(&mut main, &self.container);
        let mut spec = json!({ "restartPolicy": "Never", "containers": [main] });
        if let Some(other) = self.first.as_ref().or(self.beside.as_ref()) {
            let mut before = container("first", other);
            before["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v" }]);
            if self.beside.is_some() {
                before["restartPolicy"] = "Always".into();
            }
            spec["initContainers"] = json!([before]);
        }
        merge(&mut spec, &self.spec);
        spec
    }
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

async fn fail_as_documented() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("hostile.json")).unwrap();
    let world = World::start().await;
    let victim = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(victim.path().join("letter"), "dear").unwrap();
    let socket = world.directory.path().join("socket");
    let _named = UnixListener::bind(&socket).unwrap();
    let name = format!("nearhop-hostile-{}", std::process::id());
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let words = BTreeMap::from([
        ("$VICTIM", victim.path().display().to_string()),
        ("$ROOT_DIR", world.directory.path().join("agent").display().to_string()),
        ("$KUBECONFIG", world.kubeconfig().display().to_string()),
        ("$SOCKET", socket.display().to_string()),
        ("$HOME", "/home".to_owned()),
        ("$ABSTRACT", format!("@{name}")),
    ]);
    let bystander = json!({ "containers": [{ "name": "c", "image": "nearhop/echo" }] });
    world.create("bystander", bystander).await;
    world.ready("bystander").await;
    let before = fingerprint(victim.path());
    for row in &rows {
        world.create(&row.row, row.manifest(&words)).await;
    }
    let mut wrong = Vec::new();
    for row in &rows {
        wrong.extend(check(&world, row).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(before, fingerprint(victim.path()), "a Pod changed the host");
    check_log_flood(&world);
    let pod = world.ready("bystander").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

/// The differences from the documentation.
async fn check(world: &World, row: &Row) -> Vec<String> {
    let name = &row.row;
    let mut wrong = Vec::new();
    if !SECURITY.contains(&format!("| `{name}` |")) {
        wrong.push(format!("docs/security.md has no row `{name}`"));
    }
    if let Some(reason) = &row.event {
        world.event(name, reason).await;
    } else if row.outcome.is_empty() {
        // Either outcome of the race is fine.
        let main = |pod: &Value| pod["status"]["containerStatuses"][0]["state"].clone();
        world.until(name, "over", |pod| main(pod)["terminated"].is_object()).await;
    } else {
        let log = world.log(name, "outcome: ").await;
        let outcome =
            log.lines().find_map(|line| line.strip_prefix("outcome: ")).unwrap_or_default();
        if row.outcome.iter().all(|expected| expected != outcome) {
            wrong.push(format!("{name}: expected {:?}, got {outcome:?}", row.outcome));
        }
    }
    wrong
}

/// 40 MiB were written; two files of 10 MiB are kept.
fn check_log_flood(world: &World) {
    let pods = fs::read_dir(world.directory.path().join("agent/pods")).unwrap();
    let logs = pods.filter_map(|pod| fs::read_dir(pod.unwrap().path().join("containers/c")).ok());
    let files = logs.flatten().filter_map(|file| file.unwrap().metadata().ok());
    let largest = files.map(|file| file.len()).max().unwrap();
    assert!((1 << 20..=10 << 20).contains(&largest), "{largest} bytes");
}

/// The state that a Pod must not change: a host directory, and the settings and devices of the host.
fn fingerprint(victim: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for directory in [victim, Path::new("/etc"), Path::new("/dev")] {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let Ok(about) = fs::symlink_metadata(entry.path()) else { continue };
            // The modification times of devices change all the time.
            let time = if directory == Path::new("/dev") { 0 } else { about.mtime() };
            let (mode, owner) = (about.mode(), about.uid());
            all.push(format!("{} {mode:o} {owner} {time}", entry.path().display()));
        }
    }
    let planted = |directory: &&str| Path::new(directory).join("planted-by-hostile-pod").exists();
    let planted =
        ["/", "/home", "/root", "/tmp", "/run", "/var", "/usr"].into_iter().filter(planted);
    all.extend(planted.map(|directory| format!("planted in {directory}")));
    all.push(fs::read_to_string(victim.join("letter")).unwrap());
    for name in ["kernel/core_pattern", "kernel/hostname", "kernel/panic"] {
        all.push(fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default());
    }
    all.sort();
    all
}

async fn cannot_write_host() {
    let world = World::start().await;
    let victim = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = victim.path().join("planted");
    let script = format!(
        "/.nearhop attack remount-rw; /.nearhop attack write {}; echo over; exec sleep 1000",
        file.display()
    );
    let container = json!({ "name": "c", "image": "x", "command": ["/bin/sh", "-c", script] });
    world.create("writer", json!({ "containers": [container] })).await;
    let log = world.log("writer", "over").await;
    assert!(!file.exists(), "{log}");
    assert_eq!(log, "outcome: EPERM\noutcome: ENOENT\nover\n");
}

async fn inherit_no_files() {
    let victim = tempfile::tempdir_in("/var/tmp").unwrap();
    let inherited = fs::File::open(victim.path()).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let world = World::start().await;
    let mut open = fs::read_dir(format!("/proc/{}/fd", world.agent_pid())).unwrap().flatten();
    let has_it = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|it| it == victim.path());
    assert!(open.any(has_it), "the agent inherits the directory");
    let script = "i=3; while [ $i -lt 1024 ]; do [ -e /proc/$$/fd/$i ] && echo open $i; \
                  i=$((i+1)); done; echo over";
    let hold = format!("{script}; exec sleep 1000");
    let container = json!({ "name": "c", "image": "x", "command": ["/bin/sh", "-c", hold] });
    world.create("heir", json!({ "containers": [container] })).await;
    assert_eq!(world.log("heir", "over").await, "over\n", "container");
    let ran = exec("heir", "c", "v5.channel.k8s.io", &["sh", "-c", script], None).await;
    assert_eq!(ran.out, "over\n", "exec");
}

async fn sub_path_stays() {
    let world = World::start().await;
    let victim = tempfile::tempdir_in("/var/tmp").unwrap();
    let mount = |more: serde_json::Value| {
        let mut mount = json!({ "name": "v", "mountPath": "/v" });
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        mount
    };
    let link = format!("ln -s {} /v/x", victim.path().display());
    let spec = json!({
        "volumes": [{ "name": "v", "emptyDir": {} }],
        "restartPolicy": "Never",
        "initContainers": [{
            "name": "first", "image": "x", "command": ["/bin/sh", "-c", link],
            "volumeMounts": [mount(json!({}))],
        }],
        "containers": [{
            "name": "c", "image": "x", "command": ["/bin/sh", "-c", "echo x > /v/planted"],
            "volumeMounts": [mount(json!({ "subPath": "x" }))],
        }],
    });
    world.create("linked", spec).await;
    let pod = world.until("linked", "over", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 0, "{}", pod["status"]);
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let message = ended["message"].as_str().unwrap();
    assert!(message.contains("subPath") && message.contains("symbolic link"), "{message}");
}
