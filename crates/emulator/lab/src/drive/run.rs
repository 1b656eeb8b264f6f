//! Runs the workers and combines their counts.

use std::io;
use std::path::Path;

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use tokio::io::AsyncReadExt as _;

use super::origin::{Origin, Question, Where, find, find_places};
use super::report::{Report, report};
use super::worker::Job;
use super::{Tally, WORKER};
use crate::LabError;
use crate::cluster::{Cluster, describe};
use crate::control::{Answer, Place, Request, ask};

/// Path of the `nearhop` binary in every container.
const IN_CONTAINERS: &str = "/.nearhop";

/// Opens connections to a Service of the lab in this directory.
pub async fn drive(
    state: &Path,
    cluster: &Cluster,
    question: &Question,
) -> Result<Report, LabError> {
    let (origins, mut places) = find(cluster, &nodes_of(state)?, question).await?;
    let tallies = try_join_all(origins.iter().map(|origin| work_at(state, cluster, origin)));
    let tallies = tallies.await?;
    // Adds Pods that were created meanwhile.
    if let Ok(now) = find_places(cluster, &question.service.namespace).await {
        places.pods.extend(now.pods);
    }
    Ok(report(&tallies, &places))
}

/// The lab's nodes.
fn nodes_of(state: &Path) -> Result<Vec<String>, LabError> {
    let failed = |cause| LabError::File { path: state.to_owned(), cause };
    match ask(state, &Request::Status).map_err(failed)? {
        Answer::Status(status) => Ok(status.zones.into_values().flatten().collect()),
        _ => Err(failed(io::Error::other("unexpected answer from the lab"))),
    }
}

async fn work_at(
    state: &Path,
    cluster: &Cluster,
    origin: &Origin,
) -> Result<(String, Tally), LabError> {
    let (what, output) = match &origin.place {
        Where::Lab(place) => (place.to_string(), in_lab(state, place.clone(), &origin.job).await),
        Where::Pod { namespace, name } => {
            (format!("pod/{name}"), in_pod(cluster, namespace, name, &origin.job).await)
        }
    };
    let failed = |why: String| LabError::Drive { what: format!("driving from {what}"), why };
    let tally = serde_json::from_str(&output.map_err(failed)?);
    Ok((origin.zone.clone(), tally.map_err(|error| failed(error.to_string()))?))
}

/// The arguments of a worker.
pub(crate) fn command_line(job: &Job) -> Vec<String> {
    let job = serde_json::to_string(job).expect("a job is plain data");
    vec![WORKER.to_owned(), "--job".to_owned(), job]
}

async fn in_lab(state: &Path, place: Place, job: &Job) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (state, request) = (state.to_owned(), Request::Run(place, program, command_line(job)));
    let answer = tokio::task::spawn_blocking(move || ask(&state, &request)).await;
    match answer.map_err(|error| error.to_string())?.map_err(|error| error.to_string())? {
        Answer::Output { stdout, code: Some(0), .. } => Ok(stdout),
        Answer::Output { stderr, .. } => Err(stderr),
        Answer::Refused(why) => Err(why),
        Answer::Done | Answer::Status(_) => Err("unexpected answer from the lab".to_owned()),
    }
}

async fn in_pod(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    job: &Job,
) -> Result<String, String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), namespace);
    let command = std::iter::once(IN_CONTAINERS.to_owned()).chain(command_line(job));
    let params = AttachParams::default().stdin(false).stdout(true).stderr(true);
    let mut process = pods.exec(name, command, &params).await.map_err(|error| describe(&error))?;
    let (mut out, mut errors) = (String::new(), String::new());
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let read = async {
        if let Some(mut stdout) = stdout {
            stdout.read_to_string(&mut out).await?;
        }
        if let Some(mut stderr) = stderr {
            stderr.read_to_string(&mut errors).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    read.await.map_err(|error| error.to_string())?;
    if !out.is_empty() {
        return Ok(out);
    }
    if let Some(status) = status
        && let Some(message) = status.await.and_then(|status| status.message)
    {
        errors += &message;
    }
    Err(errors)
}
