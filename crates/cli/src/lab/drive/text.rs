//! The result of `lab drive` for people. Long tables are cut; `-o json` has all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use nearhop_lab::drive::report::{End, Judged, Matrix, Report};
use nearhop_lab::drive::run::Progress;
use nearhop_lab::drive::tally::{Causes, Percentiles};

use crate::color::paint_failure;

/// Rows of a table.
const ROWS: usize = 20;

/// Columns of a matrix. A larger one becomes a table of what stayed and what left.
const COLUMNS: usize = 8;

/// Targets and sources of failures.
const PLACES: usize = 10;

/// `412 of 1000 connections, 3 failed, 1.2 s`.
pub(super) fn progress(progress: &Progress) -> String {
    let of = progress.planned.map_or(String::new(), |planned| format!(" of {planned}"));
    let seconds = progress.elapsed.as_secs_f64();
    let limit =
        progress.duration.map_or(String::new(), |all| format!(" of {:.1}", all.as_secs_f64()));
    format!("{}{of} connections, {} failed, {seconds:.1}{limit} s", progress.done, progress.failed)
}

pub(super) fn describe(report: &Report) -> String {
    let mut text = heading(report);
    if report.answered > 0 {
        for table in [zones(report), nodes(report), pods(report)] {
            let _ = write!(text, "\n{}\n", trimmed(&table));
        }
    }
    text += &failures(report);
    if let Some(latency) = report.latency {
        let _ = writeln!(text, "\n{}", describe_latency(latency));
    }
    let lost = report.lost_clients.iter().map(|(client, why)| format!("lost: {client}: {why}\n"));
    let remarks: String =
        lost.chain(report.notes.iter().map(|note| format!("note: {note}\n"))).collect();
    if !remarks.is_empty() {
        let _ = write!(text, "\n{remarks}");
    }
    if !report.assertions.is_empty() {
        let _ = write!(text, "\n{}\n", trimmed(&assertions(&report.assertions)));
    }
    text
}

fn heading(report: &Report) -> String {
    let share = |share: Option<f64>| {
        share.map_or_else(|| "n/a".to_owned(), |share| format!("{:.1}%", share * 100.0))
    };
    let mut text = match report.end {
        End::Finished => String::new(),
        End::Interrupted => "interrupted: the result so far\n".to_owned(),
        End::GaveUp => format!(
            "gave up, because every connection timed out; {} of {} connections were not opened\n",
            report.planned.unwrap_or_default().saturating_sub(report.connections),
            report.planned.unwrap_or_default(),
        ),
    };
    let _ = writeln!(
        text,
        "{} connections in {:.1} s, {} answered, {} of them from another zone, {} from another node",
        report.connections,
        report.seconds,
        report.answered,
        share(report.cross_zone),
        share(report.cross_node),
    );
    text
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> =
        table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

/// A row that says how many follow.
fn cut(table: &mut Table, rows: usize) {
    if rows > ROWS {
        table.add_row([format!("... {} more rows: -o json", rows - ROWS)]);
    }
}

fn zones(report: &Report) -> Table {
    let columns: BTreeSet<&str> = columns(&report.matrix);
    if columns.len() <= COLUMNS {
        return matrix("FROM \\ TO ZONE", "(no zone)", &report.matrix, &columns);
    }
    let mut table = new_table();
    table.set_header(["FROM ZONE", "SAME ZONE", "OTHER ZONES"]);
    for (from, row) in report.matrix.iter().take(ROWS) {
        let same = row.get(from).copied().unwrap_or_default();
        let all: u64 = row.values().sum();
        table.add_row([from.clone(), same.to_string(), (all - same).to_string()]);
    }
    cut(&mut table, report.matrix.len());
    right_aligned(table)
}

fn nodes(report: &Report) -> Table {
    let columns: BTreeSet<&str> = columns(&report.node_matrix);
    if columns.len() <= COLUMNS {
        return matrix("FROM \\ TO NODE", "(unknown)", &report.node_matrix, &columns);
    }
    let zones: BTreeMap<&str, &str> =
        report.pods.values().map(|pod| (&*pod.node, &*pod.zone)).collect();
    let own: BTreeMap<&str, &str> =
        report.clients.values().map(|client| (&*client.node, &*client.zone)).collect();
    let mut table = new_table();
    table.set_header(["FROM NODE", "SAME NODE", "SAME ZONE, OTHER NODE", "OTHER ZONES"]);
    for (from, row) in report.node_matrix.iter().take(ROWS) {
        let near = |to: &str| zones.get(to).is_some_and(|zone| own.get(&**from) == Some(zone));
        let same = row.get(from).copied().unwrap_or_default();
        let zone: u64 =
            row.iter().filter(|(to, _)| *to != from && near(to)).map(|(_, count)| count).sum();
        let other = row.values().sum::<u64>() - same - zone;
        table.add_row([from.clone(), same.to_string(), zone.to_string(), other.to_string()]);
    }
    cut(&mut table, report.node_matrix.len());
    right_aligned(table)
}

fn columns(matrix: &Matrix) -> BTreeSet<&str> {
    matrix.values().flat_map(|row| row.keys()).map(String::as_str).collect()
}

fn matrix(corner: &str, unnamed: &str, matrix: &Matrix, columns: &BTreeSet<&str>) -> Table {
    let named = |name: &str| if name.is_empty() { unnamed.to_owned() } else { name.to_owned() };
    let mut table = new_table();
    let head = columns.iter().map(|name| named(name));
    table.set_header(std::iter::once(corner.to_owned()).chain(head));
    for (from, row) in matrix.iter().take(ROWS) {
        let cells = columns.iter().map(|to| row.get(*to).copied().unwrap_or(0).to_string());
        table.add_row(std::iter::once(named(from)).chain(cells));
    }
    cut(&mut table, matrix.len());
    right_aligned(table)
}

fn right_aligned(mut table: Table) -> Table {
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

fn pods(report: &Report) -> Table {
    let mut table = new_table();
    table.set_header(["POD", "NODE", "ZONE", "ANSWERS", "SHARE"]);
    let mut rows: Vec<_> = report.pods.iter().collect();
    if rows.len() > ROWS {
        // Cut rows must not be the busiest ones.
        rows.sort_by_key(|(_, pod)| std::cmp::Reverse(pod.answers));
    }
    for (name, pod) in rows.iter().take(ROWS) {
        let share = pod.answers as f64 / report.answered.max(1) as f64 * 100.0;
        let answers = pod.answers.to_string();
        table.add_row([*name, &pod.node, &pod.zone, &answers, &format!("{share:.1}%")]);
    }
    cut(&mut table, rows.len());
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn failures(report: &Report) -> String {
    if report.failed == 0 {
        return String::new();
    }
    let heading = format!("{} failed: {}", report.failed, causes(&report.failures));
    let mut text = format!("\n{}\n", paint_failure(&heading));
    for (title, places) in
        [("from", &report.failures_by_source), ("at", &report.failures_by_target)]
    {
        let mut sorted: Vec<_> = places.iter().collect();
        sorted.sort_by_key(|(_, causes)| std::cmp::Reverse(causes.values().sum::<u64>()));
        for (name, found) in sorted.iter().take(PLACES) {
            let _ = writeln!(text, "  {title} {name}: {}", causes(found));
        }
        if let Some(more) = sorted.len().checked_sub(PLACES).filter(|more| *more > 0) {
            let _ = writeln!(text, "  {title} ... {more} more: -o json");
        }
    }
    text
}

fn causes(causes: &Causes) -> String {
    let all: Vec<String> = causes.iter().map(|(failure, count)| failure.describe(*count)).collect();
    all.join(", ")
}

fn describe_latency(latency: Percentiles) -> String {
    let ms = |us: u32| f64::from(us) / 1000.0;
    format!(
        "latency: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        ms(latency.p50_us),
        ms(latency.p90_us),
        ms(latency.p99_us),
        ms(latency.max_us)
    )
}

fn assertions(judged: &[Judged]) -> Table {
    let mut table = new_table();
    table.set_header(["RESULT", "ASSERTION", "MEASURED"]);
    for one in judged {
        let result = if one.held { "held" } else { "failed" };
        table.add_row([result, &one.assertion, &one.measured]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearhop_lab::drive::Failure;
    use nearhop_lab::drive::report::{Answered, ClientCounts};

    /// Every node has one Pod; each client reaches its own node twice and the next node once.
    fn ring(nodes: usize) -> Report {
        let mut report = Report { answered: nodes as u64 * 3, ..Report::default() };
        let zone = |n: usize| format!("zone-{}", n / 2);
        for n in 0..nodes {
            let (own, next) = (format!("n{n:02}"), format!("n{:02}", (n + 1) % nodes));
            report
                .node_matrix
                .entry(own.clone())
                .or_default()
                .extend([(own.clone(), 2), (next, 1)]);
            let row = report.matrix.entry(zone(n)).or_default();
            *row.entry(zone(n)).or_default() += 2;
            *row.entry(zone((n + 1) % nodes)).or_default() += 1;
            let client = ClientCounts { node: own.clone(), zone: zone(n), answered: 3, failed: 0 };
            report.clients.insert(format!("node/{own}"), client);
            let pod = Answered { node: own.clone(), zone: zone(n), answers: 3 + n as u64 };
            report.pods.insert(format!("web-{own}"), pod);
        }
        report
    }

    fn lines(table: &Table) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.to_string().lines().map(words).collect()
    }

    #[test]
    fn a_small_cluster_has_a_matrix_of_nodes() {
        let table = lines(&nodes(&ring(4)));
        assert_eq!(table[0], "FROM \\ TO NODE n00 n01 n02 n03");
        assert_eq!(table[1], "n00 2 1 0 0");
        assert_eq!(table[4], "n03 1 0 0 2");
    }

    #[test]
    fn a_large_cluster_has_what_stayed_and_what_left_and_a_hint() {
        let table = lines(&nodes(&ring(30)));
        assert_eq!(table[0], "FROM NODE SAME NODE SAME ZONE, OTHER NODE OTHER ZONES");
        assert_eq!((table[1].as_str(), table[2].as_str()), ("n00 2 1 0", "n01 2 0 1"));
        assert_eq!((table.len(), table[21].as_str()), (22, "... 10 more rows: -o json"));
        let zones = lines(&zones(&ring(30)));
        assert_eq!(zones[0], "FROM ZONE SAME ZONE OTHER ZONES");
        assert_eq!(zones[1], "zone-0 5 1");
    }

    #[test]
    fn of_many_pods_the_busiest_are_shown() {
        let table = lines(&pods(&ring(30)));
        assert!(table[1].starts_with("web-n29 n29 zone-14 32"), "{table:?}");
        assert_eq!(table[21], "... 10 more rows: -o json");
        assert!(lines(&pods(&ring(4)))[1].starts_with("web-n00"), "few are sorted by name");
    }

    #[test]
    fn failures_are_shown_by_cause_source_and_target() {
        let causes = |count| Causes::from([(Failure::TimedOut, count)]);
        let mut report = Report { failed: 15, failures: causes(15), ..Report::default() };
        report.failures.insert(Failure::NoSuchName, 5);
        report.failures_by_source.insert("node/n1".to_owned(), causes(15));
        for n in 0..12 {
            report.failures_by_target.insert(format!("pod/shop/web-{n:02}"), causes(n));
        }
        let text = anstream::adapter::strip_str(&failures(&report)).to_string();
        assert!(
            text.contains("15 failed: 15 timed out, 5 DNS lookups without addresses\n"),
            "{text}"
        );
        assert!(
            text.contains("  from node/n1: 15 timed out\n  at pod/shop/web-11: 11 timed"),
            "{text}"
        );
        assert!(text.ends_with("  at ... 2 more: -o json\n"), "{text}");
    }

    #[test]
    fn the_heading_says_why_a_drive_ended_early() {
        let mut report = Report { planned: Some(8000), connections: 90, ..Report::default() };
        report.end = End::GaveUp;
        let text = describe(&report);
        assert!(text.contains("7910 of 8000 connections were not opened"), "{text}");
        assert!(text.contains("0 answered, n/a of them from another zone, n/a from"), "{text}");
        report.end = End::Interrupted;
        assert!(describe(&report).starts_with("interrupted: the result so far\n"));
    }

    #[test]
    fn progress_is_one_line_without_control_characters() {
        let now = Progress {
            done: 412,
            failed: 3,
            planned: Some(1000),
            elapsed: std::time::Duration::from_millis(1234),
            duration: None,
        };
        assert_eq!(progress(&now), "412 of 1000 connections, 3 failed, 1.2 s");
        let timed =
            Progress { planned: None, duration: Some(std::time::Duration::from_secs(30)), ..now };
        assert_eq!(progress(&timed), "412 connections, 3 failed, 1.2 of 30.0 s");
    }
}
