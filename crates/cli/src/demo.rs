//! `nearhop demo`: measures each routing policy in a lab and compares with the prediction.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args as ClapArgs, ValueEnum};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use nearhop_lab::Lab;
use nearhop_lab::cluster::Cluster;
use nearhop_lab::demo::{self, Matrix, Options, Outcome, Progress, Verdict};
use nearhop_lab::enter::HeldSignals;
use nearhop_lab::serve::make_ready;
use nearhop_lab::spec::{Api, Controllers, Spec};
use nearhop_lab::state::{self, LabName, StateDir};

use crate::lab::{NODE_GRACE, start};
use crate::output::{print, print_json};

/// Measures where connections go under each routing policy, in a cluster of three zones on this
/// machine, and compares with the prediction.
///
/// For new users. Needs no cluster; needs root or user namespaces, and takes about a minute. Removes
/// the lab at the end. Exit code 0: all measurements agree with the predictions. 1: one differs.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop demo
  nearhop demo --connections 1000 -o json
  nearhop demo -o svg > demo.svg")]
pub(crate) struct Args {
    /// Connections per policy.
    #[arg(long, value_name = "N", default_value_t = 6000, value_parser = clap::value_parser!(u64).range(100..=200_000))]
    connections: u64,

    /// Output format: text, json, or svg, a drawing of the traffic between zones under three of the
    /// policies.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    output: Output,
}

/// `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Output {
    #[value(alias = "table")]
    Text,
    Json,
    Svg,
}

/// What the supervisor runs.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Order {
    options: Options,
    output: Output,
}

impl std::str::FromStr for Order {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}

/// Starts the lab, whose supervisor performs the demo.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let held = HeldSignals::hold().context("cannot hold signals")?;
    let state = StateDir::create(&state::base()?, LabName::Like("demo"))?;
    let spec = Spec {
        name: state.name().to_owned(),
        state: state.path().to_owned(),
        program: std::env::current_exe().context("cannot find the path of this program")?,
        topology: demo::topology()?,
        api: Api::Own { data: Spec::data_in_memory(state.path()) },
        listen: ([127, 0, 0, 1], 0).into(),
        controllers: Controllers::All,
        node_grace: NODE_GRACE,
        gates: String::new(),
        config: None,
    };
    let order = Order { options: Options { connections: args.connections }, output: args.output };
    start(&spec, &["--demo".to_owned(), serde_json::to_string(&order)?], held)
}

/// Performs the demo, in the supervisor.
pub(crate) async fn perform(spec: Spec, order: Order) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let bar = Bar::new();
    bar.show(&Progress { step: 0, steps: 1, doing: "starting a cluster".to_owned() });
    let outcomes = measure(spec, order.options, &bar).await;
    bar.clear();
    let outcomes = outcomes?;
    match order.output {
        Output::Json => print_json(&outcomes)?,
        Output::Svg => print(&demo::draw_svg(&outcomes))?,
        Output::Text => print(&render(&outcomes, begun))?,
    }
    let agree = outcomes.iter().all(|outcome| outcome.verdict == Verdict::Agrees);
    Ok(ExitCode::from(if agree { 0 } else { 1 }))
}

async fn measure(spec: Spec, options: Options, bar: &Bar) -> anyhow::Result<Vec<Outcome>> {
    let lab = Lab::start(spec).await?;
    let ready = make_ready(lab.spec()).await;
    ready.map_err(|error| lab.explain(error))?;
    let cluster = Cluster::connect(&lab.spec().kubeconfig()).await?;
    let outcomes = demo::run(&lab, &cluster, options, |progress| bar.show(progress)).await;
    Ok(outcomes.map_err(|error| lab.explain(error))?)
}

/// A progress bar, on a terminal only.
struct Bar {
    terminal: bool,
}

impl Bar {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    fn show(&self, progress: &Progress) {
        const WIDTH: usize = 28;
        if self.terminal {
            let done = WIDTH * progress.step / progress.steps.max(1);
            let bar = format!("{}{}", "#".repeat(done), "-".repeat(WIDTH - done));
            self.print(&format!("\r\x1b[K[{bar}] {}", progress.doing));
        }
    }

    fn clear(&self) {
        if self.terminal {
            self.print("\r\x1b[K");
        }
    }

    fn print(&self, text: &str) {
        let _ = write!(std::io::stderr(), "{text}");
        let _ = std::io::stderr().flush();
    }
}

fn render(outcomes: &[Outcome], begun: Instant) -> String {
    let mut text = String::from(
        "three zones with 16, 8 and 8 CPUs, two nodes each, 1, 4 and 4 pods; connections from every \
         node, as many as it has CPU\nshares of all connections, from the client's zone to the \
         pod's: measured, and (predicted)\n",
    );
    for (n, outcome) in outcomes.iter().enumerate() {
        let _ = write!(text, "\n{}. {}\n   {}\n\n", n + 1, outcome.title, outcome.words);
        for line in matrix(outcome).to_string().lines() {
            let _ = writeln!(text, "   {}", line.trim_end());
        }
        let (got, want) = (&outcome.measured, &outcome.predicted);
        let _ = writeln!(
            text,
            "\n   crossed zones {:.1}% ({:.1}%)   busiest pod {:.2} times the mean ({:.2})   {} \
             connections, {} failed   {}",
            got.crossed * 1e2,
            want.crossed * 1e2,
            got.worst,
            want.worst,
            got.answered + got.failed,
            got.failed,
            match outcome.verdict {
                Verdict::Agrees => "agrees",
                Verdict::Differs(_) => "DIFFERS",
            }
        );
        if let Verdict::Differs(found) = &outcome.verdict {
            for one in found {
                let _ = writeln!(text, "   ! {one}");
            }
        }
    }
    text + &conclusion(outcomes, begun)
}

fn conclusion(outcomes: &[Outcome], begun: Instant) -> String {
    let agree = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Agrees).count();
    format!(
        "\n{agree} of {} measurements agree with their predictions, after {:.1} s. That is: no \
         connection failed, none went where\nnone was predicted, every share is within {:.0} \
         points or {:.0} standard deviations, the busiest pod within {:.0}% or as many.\n",
        outcomes.len(),
        begun.elapsed().as_secs_f64(),
        demo::POINTS * 1e2,
        demo::SIGMAS,
        demo::WORST * 1e2,
    )
}

fn matrix(outcome: &Outcome) -> Table {
    let matrices = [&outcome.measured.matrix, &outcome.predicted.matrix];
    let from: BTreeSet<&String> = matrices.iter().flat_map(|matrix| matrix.keys()).collect();
    // A zone without connections has a column too.
    let rows = matrices.iter().flat_map(|matrix| matrix.values());
    let to: BTreeSet<&String> =
        rows.flat_map(|row| row.keys()).chain(from.iter().copied()).collect();
    let mut table = Table::new();
    let head = to.iter().map(|zone| format!("TO {zone}"));
    table.load_style(NOTHING).set_header(std::iter::once("FROM".to_owned()).chain(head));
    for zone in &from {
        let cells = to.iter().map(|other| {
            let share = |matrix: &Matrix| {
                matrix.get(*zone).and_then(|row| row.get(*other)).copied().unwrap_or(0.0) * 1e2
            };
            format!("{:.1}% ({:.1}%)", share(matrices[0]), share(matrices[1]))
        });
        table.add_row(std::iter::once((*zone).clone()).chain(cells));
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}
