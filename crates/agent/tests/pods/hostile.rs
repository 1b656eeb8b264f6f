//! Pods that mean harm: what docs/security.md says of each of them.

use std::fs;

use serde_json::json;

use crate::world::{Test, World};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("a_pod_cannot_write_the_hosts_files", || Box::pin(cannot_write_host())),
    ("a_sub_path_does_not_leave_its_volume", || Box::pin(sub_path_stays())),
];

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
    assert!(log.contains("remount-rw: EPERM\n"), "{log}");
    assert!(log.contains("write: ENOENT\n"), "the host's temporary files are hidden: {log}");
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
