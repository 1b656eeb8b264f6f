//! `nearhop conform`: runs conformance case files and prints differences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use nearhop_conform::{FileReport, Only, Report, run_file};

use crate::color::paint_failure;
use crate::output::{Output, OutputArgs, complain};

/// Size limit of a case file, in bytes.
const LARGEST: u64 = 64 << 20;

/// Runs conformance cases through nearhop's routing core and prints the differences.
///
/// For developers of nearhop and of other implementations. Needs no cluster. Exit code 0: all cases
/// pass. 1: a case fails, or a file cannot be used. 2: a path or a group does not exist.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  nearhop conform conformance/cases
  nearhop conform --only find_port,hints_enabled conformance/cases
  nearhop conform -o json conformance/cases")]
pub(crate) struct Args {
    /// Run only these groups of cases. Default: all.
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    only: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,

    /// Case files, or directories, which are searched for *.json.
    #[arg(required = true, value_name = "FILE_OR_DIR")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // An environment variable may be set and empty.
    let only: Only = args.only.iter().filter(|group| !group.is_empty()).cloned().collect();
    let mut report = Report::default();
    for path in find_files(&args.paths)? {
        report.add(run_path(&path, &only));
    }
    refuse_unknown(&only, &report)?;
    args.output.print(&report, || render(&report))?;
    if args.output.output == Output::Json {
        complain(&report.summary());
    }
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_path(path: &Path, only: &Only) -> FileReport {
    let name = path.display().to_string();
    match read(path) {
        Ok(bytes) => run_file(&name, &bytes, only),
        Err(error) => FileReport::unusable(&name, format!("cannot be read: {error}")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!("it is larger than {LARGEST} bytes")));
    }
    Ok(bytes)
}

/// The files of the arguments; those of a directory sorted by name.
fn find_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let kind = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow!("{} does not exist", path.display()),
            _ => anyhow!("cannot read {}: {error}", path.display()),
        })?;
        if kind.is_dir() {
            let before = files.len();
            walk(path, &mut BTreeSet::new(), &mut files)
                .with_context(|| format!("cannot look into {}", path.display()))?;
            if files.len() == before {
                bail!("{}: no *.json files", path.display());
            }
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// `above` are the parent directories, so that a link to one of them is not followed.
fn walk(dir: &Path, above: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let place = fs::canonicalize(dir)?;
    if !above.insert(place.clone()) {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(&path, above, files)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    above.remove(&place);
    Ok(())
}

fn refuse_unknown(only: &Only, report: &Report) -> Result<()> {
    let unknown: Vec<&str> = only.names().filter(|name| !report.met.contains(*name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let there: Vec<&str> = report.met.iter().map(String::as_str).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    bail!("--only: no cases of group {}; groups: {there}", unknown.join(", "))
}

fn render(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["GROUP", "PASSED", "FAILED", "SKIPPED"]);
    for group in &report.groups {
        let counts = [group.passed, group.failed, group.skipped].map(|count| count.to_string());
        table.add_row(std::iter::once(group.group.clone()).chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        let _ = writeln!(text, "{}", line.trim());
    }
    for failure in &report.failures {
        let _ = writeln!(text, "{}", paint_failure(&failure.to_string()));
    }
    if !report.skipped_groups.is_empty() {
        let _ = writeln!(text, "unknown groups, skipped: {}", report.skipped_groups.join(", "));
    }
    let _ = writeln!(text, "{}", report.summary());
    text
}
