//! `nearhop lab down`: stops a lab.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args as ClapArgs;
use nearhop_lab::control::{Request, ask};
use nearhop_lab::{merge, state};

use super::{Name, status_of};
use crate::output::print;

/// How long a lab may take to stop.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Stops a lab and deletes its files. Objects in a --data-dir are kept.
///
/// Exit code 0: it stopped, or no lab runs. 2: another lab runs, or it does not stop.
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
    if state::running(&state::base()?)?.is_empty() {
        let which = args.name.given().map_or(String::new(), |name| format!(" `{name}`"));
        print(&format!("no lab{which} runs\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = args.name.find()?;
    let text = describe(&state);
    // The lab may end before it answers. Its directory is removed last.
    let _ = ask(&state, &Request::Down);
    let deadline = Instant::now() + TIMEOUT;
    while state.exists() {
        if Instant::now() > deadline {
            bail!("the lab does not stop. Cure: kill `nearhop lab up`; the next start cleans up");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What the end of the lab means.
fn describe(state: &Path) -> String {
    let name = state.file_name().unwrap_or_default().to_string_lossy();
    let kept = match status_of(state).ok().and_then(|status| status.data_dir) {
        Some(directory) => format!("its objects are kept in {}", directory.display()),
        None => "its processes and objects are gone".to_owned(),
    };
    let mut text = format!("lab `{name}` stopped; {kept}\n");
    for merged in merge::merged_into(state) {
        text += &format!("removed the context {} from {}\n", merged.context, merged.path.display());
    }
    text
}
