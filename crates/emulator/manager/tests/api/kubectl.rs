//! Stock kubectl, if installed.

use std::process::{Command, Output};

use crate::cluster::{Cluster, SIX};

/// `None` without kubectl.
async fn kubectl(cluster: &Cluster, line: &str) -> Option<Output> {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(cluster.directory.path().join("kubeconfig"));
    command.arg("--cache-dir").arg(cluster.directory.path().join("cache"));
    command.args(line.split_whitespace());
    let ran = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    ran.ok()
}

/// Runs commands; each must succeed and print the expected text.
async fn session(cluster: &Cluster, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let Some(output) = kubectl(cluster, line).await else {
            return nearhop_skip::skip("kubectl is not installed");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {line}: {text}{errors}");
        assert!(text.contains(expected), "kubectl {line}: {text}{errors}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_rolls_out_scales_and_drains() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let rolled = ("rollout status deployment/web --timeout=60s", "successfully rolled out");
    session(
        &cluster,
        &[
            ("create deployment web --image=v1 --replicas=3", "deployment.apps/web created"),
            rolled,
            ("scale deployment/web --replicas=6", "scaled"),
            rolled,
            ("set image deployment/web v1=v2", "image updated"),
            rolled,
            ("rollout history deployment/web", "2"),
            ("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "v2"),
            ("rollout undo deployment/web", "rolled back"),
            rolled,
            ("get pods -o jsonpath={.items[*].spec.containers[0].image}", "v1 v1 v1 v1 v1 v1"),
            ("rollout restart deployment/web", "restarted"),
            rolled,
            ("rollout pause deployment/web", "paused"),
            ("rollout resume deployment/web", "resumed"),
            rolled,
            ("get deployment web", "6/6"),
            ("cordon n1", "cordoned"),
            ("drain n3 --timeout=60s --ignore-daemonsets", "drained"),
            rolled,
            ("get pods --field-selector spec.nodeName=n3 -o name", ""),
            ("uncordon n1", "uncordoned"),
            ("delete deployment web --timeout=60s", "deleted"),
        ],
    )
    .await;
}
