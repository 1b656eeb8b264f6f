//! The environment of a Pod: network, files, names, logs, exec.

use std::io::{PipeReader, pipe};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{LogParams, Patch, PatchParams};
use nearhop_runtime::pki::{Authority, KUBELET_CLIENT};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use crate::socket::{ask, certificate, exec, exec_in_terminal};
use crate::world::{LONG, NODE, NODE_IP, PORT, Test, World, condition, get};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("the_node_reports_its_status", || Box::pin(the_node_reports_its_status())),
    ("a_pod_has_its_own_name_network_and_files", || Box::pin(a_pod_has_its_own())),
    ("only_the_api_server_may_ask_for_logs_and_exec", || Box::pin(only_the_api_server())),
    ("netexec_responds_at_the_pods_addresses", || Box::pin(netexec_answers())),
    ("echo_reports_its_identity_and_the_client", || Box::pin(echo_says())),
    ("logs_are_selected_followed_and_kept", || Box::pin(logs_are_cut())),
    ("commands_run_in_containers", || Box::pin(commands_run())),
    ("a_command_does_not_start_after_the_end_of_container_exec", || Box::pin(client_was_faster())),
    ("volumes_and_variables_reach_containers", || Box::pin(volumes_and_variables())),
    ("pods_that_cannot_start_do_not_disturb_others", || Box::pin(what_cannot_run())),
    ("pods_have_their_own_names", || Box::pin(pods_have_their_own_names())),
];

fn sh(script: &str) -> serde_json::Value {
    json!({ "containers": [{ "name": "c", "image": "busybox", "command": ["/bin/sh", "-c", script] }] })
}

async fn the_node_reports_its_status() {
    let world = World::start().await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    let deadline = Instant::now() + LONG;
    let renewed = |lease: Option<Lease>| lease.and_then(|it| it.spec).and_then(|it| it.renew_time);
    let mut first = None;
    loop {
        let now = renewed(leases.get_opt(NODE).await.unwrap());
        if now.is_some() && first.is_some() && first != now {
            break;
        }
        first = first.or(now);
        assert!(Instant::now() < deadline, "the agent does not renew the Lease");
        sleep(Duration::from_millis(50)).await;
    }
    let node = serde_json::to_value(nodes.get(NODE).await.unwrap()).unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "zone-a");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.244.1.0/24", "fd00:10:244:1::/64"]));
    // The API server adds a taint to a Node that is not ready yet.
    let taint = json!({ "key": "nearhop.dev/lab", "effect": "NoSchedule" });
    assert!(node["spec"]["taints"].as_array().unwrap().contains(&taint), "{}", node["spec"]);
    assert_eq!(node["status"]["allocatable"]["cpu"], "4");
    assert_eq!(node["status"]["addresses"][0], json!({ "type": "InternalIP", "address": NODE_IP }));
    assert_eq!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    assert_eq!(condition(&node, "Ready"), "True");
    let missed = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    let params = PatchParams::default();
    nodes.patch_status(NODE, &params, &Patch::Strategic(missed)).await.unwrap();
    let deadline = Instant::now() + LONG;
    while condition(&serde_json::to_value(nodes.get(NODE).await.unwrap()).unwrap(), "Ready")
        != "True"
    {
        assert!(Instant::now() < deadline, "the agent does not repair the Ready condition");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn a_pod_has_its_own() {
    let world = World::start().await;
    let script = "echo name $(hostname) $(cat /etc/hostname); echo one > /tmp/own && echo tmp; \
        echo two > /own && echo root; touch /usr/own || echo read-only; \
        echo pid $$$$; grep -c . /etc/passwd; echo done; exec sleep 1000";
    world.create("own", sh(script)).await;
    let pod = world.ready("own").await;
    let log = world.log("own", "done").await;
    for line in ["name own own\n", "\ntmp\n", "\nroot\n", "\nread-only\n", "\npid 1\n"] {
        assert!(log.contains(line), "{line:?} in {log}");
    }
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], "10.244.1.1");
    assert_eq!(status["podIPs"], json!([{ "ip": "10.244.1.1" }, { "ip": "fd00:10:244:1::1" }]));
    assert_eq!(status["hostIPs"][0]["ip"], NODE_IP);
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["observedGeneration"], pod["metadata"]["generation"]);
    assert!(status["startTime"].is_string());
    for kind in ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady"] {
        assert_eq!(condition(&pod, kind), "True", "{kind}");
    }
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["ready"], &container["started"]), (&json!(true), &json!(true)));
    assert!(container["containerID"].as_str().unwrap().starts_with("nearhop://"));
    assert!(container["state"]["running"]["startedAt"].is_string());
    let addresses =
        exec("own", "c", "v5.channel.k8s.io", &["cat", "/proc/net/fib_trie"], None).await;
    assert!(addresses.out.contains("10.244.1.1"), "{addresses:?}");
    assert!(!addresses.out.contains(NODE_IP), "the Pod has its own network");
    for private in ["pods", "exec"] {
        let directory = std::fs::metadata(world.directory.path().join("agent").join(private));
        assert_eq!(directory.unwrap().permissions().mode() & 0o777, 0o700, "{private}");
    }
    world.event("own", "Started").await;
}

async fn only_the_api_server() {
    let world = World::start().await;
    world.create("secret", sh("echo hidden; exec sleep 1000")).await;
    world.ready("secret").await;
    world.log("secret", "hidden").await;
    let paths = [
        "/pods",
        "/containerLogs/default/secret/c",
        "/exec/default/secret/c?command=id&output=1",
        "/containerLogs/default/absent/c",
    ];
    let other = certificate("system:node:n2");
    for path in paths {
        let answer = ask(None, path).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
        assert!(answer.contains("\"reason\":\"Unauthorized\""), "{path}: {answer}");
        assert!(answer.contains("--client-ca-file"), "{path}: {answer}");
        let answer = ask(Some(&other), path).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
        // A certificate of another CA fails in the handshake.
        let forged = Authority::create("nearhop").unwrap().issue_client(KUBELET_CLIENT).unwrap();
        let answer = ask(Some(&forged), path).await;
        assert!(answer.as_ref().is_ok_and(String::is_empty) || answer.is_err(), "{answer:?}");
        // There is no response without TLS.
        let answer = get(NODE_IP, PORT, path).await;
        assert!(answer.as_ref().is_none_or(|text| !text.contains("hidden")), "{answer:?}");
    }
    let own = ask(Some(&certificate(KUBELET_CLIENT)), paths[1]).await.unwrap();
    assert!(own.starts_with("HTTP/1.1 200 ") && own.contains("hidden"), "{own}");
    let health = ask(None, "/healthz").await.unwrap();
    assert!(health.starts_with("HTTP/1.1 200 ") && health.ends_with("ok"), "{health}");
}

async fn netexec_answers() {
    let world = World::start().await;
    let spec = json!({ "containers": [{
        "name": "c", "image": "registry.k8s.io/e2e-test-images/agnhost:2.59",
        "args": ["netexec", "--http-port=8080", "--udp-port", "8081"],
        "ports": [{ "name": "web", "containerPort": 8080 }],
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": "web" } },
    }] });
    world.create("net", spec).await;
    world.ready("net").await;
    for address in ["10.244.1.1", "fd00:10:244:1::1"] {
        assert_eq!(get(address, 8080, "/hostname").await.unwrap(), "net");
    }
    let client: SocketAddr = get("10.244.1.1", 8080, "/clientip").await.unwrap().parse().unwrap();
    assert_eq!(client.ip().to_string(), NODE_IP);
    assert_eq!(get("10.244.1.1", 8080, "/echo?msg=a%20b").await.unwrap(), "a b");
    let shell = get("10.244.1.1", 8080, "/shell?cmd=echo%20hi;%20exit%203").await.unwrap();
    assert_eq!(shell, r#"{"error":"exit status 3","output":"hi\n"}"#);
    let dial = "/dial?host=127.0.0.1&port=8081&protocol=udp&request=hostname&tries=2";
    assert_eq!(get("10.244.1.1", 8080, dial).await.unwrap(), r#"{"responses":["net","net"]}"#);
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect("10.244.1.1:8081").await.unwrap();
    socket.send(b"echo Two").await.unwrap();
    let mut buffer = [0; 64];
    let read = timeout(LONG, socket.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..read], b"two");
}

async fn echo_says() {
    let world = World::start().await;
    let spec = json!({ "containers": [{ "name": "c", "image": "nearhop/echo" }] });
    world.create("echo", spec).await;
    world.ready("echo").await;
    let deadline = Instant::now() + LONG;
    let answer = loop {
        if let Some(answer) = get("10.244.1.1", 8080, "/").await {
            break answer;
        }
        assert!(Instant::now() < deadline, "no response");
    };
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["pod"], &answer["node"]), (&json!("echo"), &json!(NODE)));
    assert_eq!(answer["zone"], "zone-a");
    assert!(answer["client"].as_str().unwrap().starts_with(NODE_IP));
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect("10.244.1.1:8081").await.unwrap();
    socket.send(b"?").await.unwrap();
    let mut buffer = [0; 256];
    let read = timeout(LONG, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&buffer[..read]).unwrap();
    assert_eq!(answer["pod"], "echo");
}

async fn logs_are_cut() {
    let world = World::start().await;
    let spec =
        sh("echo out; echo err >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo last; exit 3");
    world.create("talk", spec).await;
    world.log("talk", "err").await;
    let following = {
        let pods = world.pods();
        tokio::spawn(async move {
            let params = LogParams { follow: true, ..LogParams::default() };
            pods.logs("talk", &params).await
        })
    };
    exec("talk", "c", "v5.channel.k8s.io", &["touch", "/tmp/go"], None).await;
    let followed = timeout(LONG, following).await.expect("the log ends with the container");
    let followed = followed.unwrap().unwrap();
    assert!(followed.ends_with("last\n") && followed.contains("err\n"), "{followed:?}");
    world
        .until("talk", "restarted", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    world.log("talk", "out").await;
    let logs = |params: LogParams| {
        let pods = world.pods();
        async move { pods.logs("talk", &params).await.unwrap() }
    };
    let previous = LogParams { previous: true, tail_lines: Some(1), ..LogParams::default() };
    assert_eq!(logs(previous).await, "last\n");
    let timed = LogParams { timestamps: true, tail_lines: Some(1), ..LogParams::default() };
    let timed = logs(timed).await;
    assert!(timed.split(' ').next().unwrap().ends_with('Z'), "{timed}");
    let short = LogParams { limit_bytes: Some(2), previous: true, ..LogParams::default() };
    assert_eq!(logs(short).await.len(), 2);
}

/// The client disconnected while the parent of the command started.
async fn client_was_faster() {
    let start = |reader: PipeReader| {
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new("/proc/self/exe");
        command.args(["container", "attend", "/bin/sh", &reader.as_raw_fd().to_string()]);
        command.args(["sh", "-c", "echo started"]).output().unwrap()
    };
    let (reader, writer) = pipe().unwrap();
    assert_eq!(start(reader).stdout, b"started\n");
    drop(writer);
    let (reader, writer) = pipe().unwrap();
    drop(writer);
    let ended = start(reader);
    assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(137), &b""[..]));
}

async fn commands_run() {
    let world = World::start().await;
    world.create("box", sh("exec sleep 1000")).await;
    world.ready("box").await;
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let ran =
            exec("box", "c", protocol, &["sh", "-c", "hostname; echo e >&2; exit 4"], None).await;
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("box\n", "e\n"));
        assert_eq!(ran.status["reason"], "NonZeroExitCode");
        assert_eq!(ran.status["details"]["causes"][0]["message"], "4");
    }
    let ran = exec("box", "c", "v5.channel.k8s.io", &["cat"], Some("to and fro")).await;
    assert_eq!((ran.out.as_str(), &ran.status["status"]), ("to and fro", &json!("Success")));
    much_goes_through().await;
    let ran = exec("box", "c", "v5.channel.k8s.io", &["no-such-program"], None).await;
    assert!(ran.err.contains("no-such-program"), "{ran:?}");
    let script = "tty; stty size; echo $TERM; exit 5\n";
    let ran = exec_in_terminal("box", "c", script).await;
    for word in ["/dev/pts/", "33 99", "xterm"] {
        assert!(ran.out.contains(word), "{word} in {ran:?}");
    }
    assert!(!ran.out.contains("Cannot set tty"), "the shell controls its terminal: {ran:?}");
    assert_eq!(ran.status["details"]["causes"][0]["message"], "5");
    by_kubectl(&world);
}

/// A command may write before it reads, and may exit before it has read all input.
async fn much_goes_through() {
    let much: String = (0..1_000_000).map(|number| format!("{number:07}\n")).collect();
    for (command, before) in [("cat", 0), ("head -c 4000000 /dev/zero; cat", 4_000_000)] {
        let words = ["sh", "-c", command];
        let ran = timeout(LONG, exec("box", "c", "v5.channel.k8s.io", &words, Some(&much))).await;
        let ran = ran.expect("no deadlock");
        let length = format!("{} bytes came back", ran.out.len());
        assert!(ran.out.get(before..) == Some(much.as_str()), "{command}: {length}");
    }
    let first = ["head", "-n", "1"];
    let ran = timeout(LONG, exec("box", "c", "v5.channel.k8s.io", &first, Some(&much))).await;
    assert_eq!(ran.expect("the command ends").out, "0000000\n");
}

/// The same with stock kubectl, if installed.
fn by_kubectl(world: &World) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(world.kubeconfig()).args(arguments).output()
    };
    let Ok(version) = run(&["version", "--client"]) else {
        return nearhop_skip::skip("kubectl is not installed");
    };
    assert!(version.status.success());
    let ran = run(&["exec", "box", "--", "sh", "-c", "hostname; exit 4"]).unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "box\n", "{errors}");
    assert!(errors.contains("exit code 4"), "{errors}");
}

fn volumes() -> serde_json::Value {
    json!([
        { "name": "shared", "emptyDir": {} },
        { "name": "map", "configMap": { "name": "settings", "items": [{ "key": "file.txt", "path": "a/b" }] } },
        { "name": "self", "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "name": "token", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token" } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
        ] } },
    ])
}

/// A container that prints its inputs.
fn reader() -> serde_json::Value {
    json!({
        "name": "c", "image": "x", "workingDir": "/not/there/yet",
        "command": ["/bin/sh", "-c", "cat /data/first /etc/map/a/b /usr/lib/self/name; echo; \
            cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; echo $ONE $(TWO) $P_KEY; \
            pwd; touch /etc/map/x 2>/dev/null || echo map-read-only; until [ -e /data/other ]; do sleep 0.05; done; \
            cat /data/other; echo done; exec sleep 1000"],
        "env": [
            { "name": "ONE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "KEY" } } },
            { "name": "TWO", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
        ],
        "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "settings" } }],
        "volumeMounts": [
            { "name": "shared", "mountPath": "/data" },
            { "name": "map", "mountPath": "/etc/map" },
            { "name": "self", "mountPath": "/usr/lib/self" },
            { "name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true },
        ],
    })
}

async fn volumes_and_variables() {
    let world = World::start().await;
    world.config_map("settings", json!({ "file.txt": "from the map\n", "KEY": "value" })).await;
    let spec = json!({
        "volumes": volumes(),
        "initContainers": [{
            "name": "first", "image": "x", "command": ["/bin/sh", "-c", "echo made > /data/first"],
            "volumeMounts": [{ "name": "shared", "mountPath": "/data" }],
        }],
        "containers": [
            reader(),
            {
                "name": "other", "image": "x",
                "command": ["/bin/sh", "-c", "echo from the other > /somewhere/other; exec sleep 1000"],
                "volumeMounts": [{ "name": "shared", "mountPath": "/somewhere" }],
            },
        ],
    });
    world.create("full", spec).await;
    let pod = world.ready("full").await;
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    let params =
        LogParams { container: Some("c".to_owned()), follow: false, ..LogParams::default() };
    let deadline = Instant::now() + LONG;
    let log = loop {
        let log = world.pods().logs("full", &params).await.unwrap();
        if log.contains("done") {
            break log;
        }
        assert!(Instant::now() < deadline, "{log}");
        sleep(Duration::from_millis(20)).await;
    };
    let expected = "made\nfrom the map\nfull\ndefault\nvalue 10.244.1.1 value\n/not/there/yet\n";
    assert!(log.starts_with(expected), "{log}");
    assert!(log.contains("map-read-only\n") && log.ends_with("from the other\ndone\n"), "{log}");
}

async fn what_cannot_run() {
    let world = World::start().await;
    let mut host = sh("exec sleep 1000");
    host["volumes"] = json!([{ "name": "h", "hostPath": { "path": "/" } }]);
    world.create("host-path", host).await;
    world.create("image", json!({ "containers": [{ "name": "c", "image": "nginx" }] })).await;
    let mut absent =
        json!({ "containers": [{ "name": "c", "image": "x", "command": ["/no/such"] }] });
    absent["restartPolicy"] = "Never".into();
    world.create("absent", absent).await;
    let mut waits = sh("exec sleep 1000");
    waits["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "later" } }]);
    world.create("waits", waits).await;
    world.create("fine", sh("exec sleep 1000")).await;
    world.ready("fine").await;
    assert!(world.event("host-path", "FailedMount").await.contains("\"h\""));
    let reason = |pod: &serde_json::Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone()
    };
    world.until("image", "refused", |pod| reason(pod) == "ErrImagePull").await;
    world.until("waits", "waiting", |pod| reason(pod) == "CreateContainerConfigError").await;
    let absent = world.until("absent", "failed", |pod| pod["status"]["phase"] == "Failed").await;
    let ended = &absent["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("StartError"), &json!(128)));
    world.config_map("later", json!({ "A": "1" })).await;
    world.ready("waits").await;
    for name in ["host-path", "image", "absent"] {
        world.delete(name, 30).await;
        world.gone(name).await;
    }
}

async fn pods_have_their_own_names() {
    let world = World::start().await;
    world.create("asks", sh("exec sleep 1000")).await;
    world.ready("asks").await;
    let own = exec("asks", "c", "v5.channel.k8s.io", &["getent", "hosts", "asks"], None).await;
    assert!(own.out.contains("asks"), "{own:?}");
    let asked = exec("asks", "c", "v5.channel.k8s.io", &["cat", "/etc/resolv.conf"], None).await;
    assert!(asked.out.contains("search default.svc.cluster.local"), "{asked:?}");
}
