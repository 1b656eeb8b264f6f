//! Packet flows: virtual packets pass the rules that the proxy would write.

use super::{Case, Part};
use crate::flows::{Flow, Walked, read_scene};
use crate::read::{CaseError, Field};
use crate::report::What;

/// The tolerance for a share, because slots are whole numbers.
const TOLERANCE: f64 = 0.02;

/// `proxy_packet_flows`: each flow has its own result.
pub(super) fn walk(case: &Case<'_>) -> Result<Vec<Part>, CaseError> {
    let scene = read_scene(&case.row, &case.file)?;
    let rules = Walked::new(&scene).map_err(|error| case.row.error(error.to_string()))?;
    let flows = case.row.get("flows")?.required()?;
    let rows = flows.list()?;
    if rows.is_empty() {
        return Err(flows.error("the case expects nothing"));
    }
    let run = |row: &Field<'_>| {
        let (id, found) = match scene.read_flow(row, &case.row) {
            Ok(flow) => (flow.id.clone(), run_flow(&rules, &flow, row)),
            Err(error) => {
                let id = row.value().get("id").and_then(|id| id.as_str());
                (id.unwrap_or(row.path()).to_owned(), vec![error.into()])
            }
        };
        (id, found)
    };
    Ok(rows.iter().map(run).collect())
}

fn run_flow(rules: &Walked, flow: &Flow, row: &Field<'_>) -> Vec<(String, What)> {
    let compared = || {
        let mut found = flow.compare(&rules.ends(&flow.packet)?, TOLERANCE);
        if flow.expected.stays {
            for (first, second) in rules.ends_again(&flow.packet)? {
                found.extend(flow.compare_stay(first, &second));
            }
        }
        Ok::<_, crate::flows::RulesError>(found)
    };
    let at = |path: String| format!("{}.{path}", row.path());
    match compared() {
        Ok(found) => found.into_iter().map(|(path, what)| (at(path), what)).collect(),
        Err(error) => vec![(row.path().to_owned(), What::Error { error: error.to_string() })],
    }
}
