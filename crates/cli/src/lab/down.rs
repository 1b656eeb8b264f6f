//! `nearhop lab down`: stops a lab.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args as ClapArgs;
use nearhop_lab::control::{Request, ask};
use nearhop_lab::{merge, state};

use super::{Name, status_of};
use crate::complain;
use crate::output::print;

/// How long a lab may take to stop.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Stops a lab and deletes its files. Objects in a --data-dir are kept.
///
/// Exit code 0: it stopped, or no such lab runs. 2: several labs run and --name is missing, or it does
/// not stop.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab down
  nearhop lab down --name lab-2")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // What was asked for is true already, as with `kind delete cluster`: scripts clean up with this.
    let running = state::running(&state::base()?)?;
    let is_down = match args.name.given() {
        Some(name) => !running.iter().any(|lab| lab == name),
        None => running.is_empty(),
    };
    if is_down {
        print(&describe_absence(args.name.given(), &running))?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = args.name.find()?;
    let mut text = describe(&state);
    let merged = merge::merged_into(&state);
    // The lab may end before it answers. Its directory is removed last.
    let _ = ask(&state, &Request::Down);
    let deadline = Instant::now() + TIMEOUT;
    while state.exists() {
        if Instant::now() > deadline {
            bail!("the lab does not stop. Cure: kill `nearhop lab up`; the next start cleans up");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (left, removed) = merged.iter().partition::<Vec<_>, _>(|one| merge::is_left(one));
    for one in removed {
        text += &format!("removed the context {} from {}\n", one.context, one.path.display());
    }
    print(&text)?;
    for one in left {
        complain(&format!(
            "warning: could not remove the context {context} from {file}. Cure: kubectl config \
             delete-context {context} --kubeconfig {file}, and the same with delete-cluster and \
             delete-user",
            context = one.context,
            file = one.path.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe_absence(name: Option<&str>, running: &[String]) -> String {
    let which = name.map_or(String::new(), |name| format!(" `{name}`"));
    if running.is_empty() {
        return format!("no lab{which} runs\n");
    }
    format!("no lab{which} runs; running labs: {}\n", running.join(", "))
}

/// What the end of the lab means.
fn describe(state: &Path) -> String {
    let name = state.file_name().unwrap_or_default().to_string_lossy();
    let kept = match status_of(state).ok().and_then(|status| status.data_dir) {
        Some(directory) => format!("its objects are kept in {}", directory.display()),
        None => "its processes and objects are gone".to_owned(),
    };
    format!("lab `{name}` stopped; {kept}\n")
}
