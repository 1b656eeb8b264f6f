//! `nearhop lab kubeconfig`: access to a lab's API for kubectl.

use std::fs;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_lab::merge::{merge, user_kubeconfig};

use super::{Name, name_flag, status_of};
use crate::output::print;

/// Prints the kubeconfig of a lab or its path, or merges it into the user's.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  export KUBECONFIG=$(nearhop lab kubeconfig --path)
  nearhop lab kubeconfig --merge && kubectl get nodes
  kubectl --context nearhop-lab get nodes                # after --merge")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Merge it into the first file of $KUBECONFIG, or ~/.kube/config, as the current context
    /// nearhop-NAME. The lab removes that context when it ends.
    #[arg(long)]
    merge: bool,

    /// Print the path of the file. It exists as long as the lab.
    #[arg(long, conflicts_with = "merge")]
    path: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let state = args.name.find()?;
    let status = status_of(&state)?;
    let path = &status.kubeconfig;
    if args.path {
        print(&format!("{}\n", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.merge {
        let text = fs::read_to_string(path);
        print(&text.with_context(|| format!("cannot read {}", path.display()))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = user_kubeconfig()
        .context("neither KUBECONFIG nor HOME is set. Cure: set KUBECONFIG to a file")?;
    let merged = merge(&state, &status.name, &path)?;
    print(&format!(
        "merged into {}: the current context is {}; `nearhop lab down{}` removes it again\n",
        merged.path.display(),
        merged.context,
        name_flag(&status.name)
    ))?;
    Ok(ExitCode::SUCCESS)
}
