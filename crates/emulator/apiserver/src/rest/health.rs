//! `/healthz`, `/livez` and `/readyz`, with named checks.
//!
//! `/livez` fails if the process must restart: a task or thread of the server ended. A disk that
//! cannot be written fails `/readyz` and `/healthz`: reads work, and writes recover with the disk.

use std::fmt::Write as _;

use crate::api::Api;
use crate::http::{HealthPath, Query, Reply};
use crate::identity::Role;
use crate::status::ApiError;

struct Check {
    name: &'static str,
    state: Result<(), String>,
    /// The process must restart if it fails.
    fatal: bool,
}

pub(super) fn answer(
    api: &Api,
    path: &HealthPath,
    query: &Query,
    role: Role,
) -> Result<Reply, ApiError> {
    let live_only = path.endpoint == "livez";
    let mut checks: Vec<Check> =
        checks(api).into_iter().filter(|check| check.fatal || !live_only).collect();
    if let Some(asked) = &path.check {
        let found = checks.into_iter().find(|check| check.name == asked);
        return match found.ok_or_else(ApiError::no_such_path)?.state {
            Ok(()) => Ok(Reply::text(200, "ok")),
            Err(why) => {
                Ok(Reply::text(500, format!("internal server error: {}\n", shown(&why, role))))
            }
        };
    }
    let excluded = |name: &str| query.pairs().any(|pair| pair == ("exclude", name));
    checks.retain(|check| !excluded(check.name));
    let failed = checks.iter().any(|check| check.state.is_err());
    if !failed && !query.has("verbose") {
        return Ok(Reply::text(200, "ok"));
    }
    let mut text = String::new();
    for Check { name, state, .. } in &checks {
        let _never = match state {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => writeln!(text, "[-]{name} failed: {}", shown(why, role)),
        };
    }
    let outcome = if failed { "failed" } else { "passed" };
    let text = format!("{text}{} check {outcome}\n", path.endpoint);
    Ok(Reply::text(if failed { 500 } else { 200 }, text))
}

/// Only authenticated users see paths of the machine.
fn shown(why: &str, role: Role) -> &str {
    if role == Role::Anonymous { "reason withheld" } else { why }
}

fn checks(api: &Api) -> Vec<Check> {
    let check = |name, fatal, state| Check { name, fatal, state };
    let tasks = match api.ended_tasks().as_slice() {
        [] => Ok(()),
        ended => Err(format!("ended too early: {}", ended.join(", "))),
    };
    vec![
        check("ping", true, Ok(())),
        check("disk", false, api.store.disk_failure().map_or(Ok(()), Err)),
        check("tasks", true, tasks),
    ]
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{ApiServer, Options};

    async fn probe(api: &Api, path: &str, query: &str, role: Role) -> (u16, String) {
        let (endpoint, check) = path.split_once('/').map_or((path, None), |(e, c)| (e, Some(c)));
        let path = HealthPath { endpoint: endpoint.to_owned(), check: check.map(str::to_owned) };
        let reply = answer(api, &path, &Query::parse(Some(query)), role).unwrap();
        let body = reply.body.collect().await.unwrap().to_bytes();
        (reply.code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_controller_that_ended_fails_livez() {
        let server = ApiServer::start(Options::default()).await.unwrap();
        let api = &server.api;
        assert_eq!(probe(api, "livez", "", Role::Admin).await, (200, "ok".to_owned()));
        let verbose = probe(api, "readyz", "verbose", Role::Anonymous).await;
        let all = "[+]ping ok\n[+]disk ok\n[+]tasks ok\nreadyz check passed\n";
        assert_eq!(verbose, (200, all.to_owned()));
        // This task ends like one that panicked.
        server.tasks[0].abort();
        while !server.tasks[0].is_finished() {
            tokio::task::yield_now().await;
        }
        let (code, text) = probe(api, "livez", "", Role::Admin).await;
        assert_eq!(code, 500);
        assert_eq!(
            text,
            "[+]ping ok\n[-]tasks failed: ended too early: definitions\nlivez check failed\n"
        );
        let (code, text) = probe(api, "readyz", "", Role::Anonymous).await;
        assert_eq!(code, 500);
        assert!(text.contains("[-]tasks failed: reason withheld\n"), "{text}");
        assert_eq!(probe(api, "livez/ping", "", Role::Admin).await.0, 200);
        assert_eq!(probe(api, "livez/tasks", "", Role::Admin).await.0, 500);
        assert_eq!(probe(api, "livez", "exclude=tasks", Role::Admin).await.0, 200);
    }
}
