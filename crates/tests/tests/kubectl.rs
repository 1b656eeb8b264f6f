//! Stock kubectl against the command that users run: the session in `data/kubectl/session.txt`.

use anyhow::Result;
use nearhop_skip::skip;
use nearhop_tests::kubectl::{Runner, read};
use nearhop_tests::replay::transcript::data;
use nearhop_tests::server::{Options, start_process};

#[test]
fn a_session_of_stock_kubectl() -> Result<()> {
    let Some(kubectl) = Runner::find() else {
        skip("kubectl is not installed");
        return Ok(());
    };
    let server = start_process(&Options::default())?;
    let home = tempfile::tempdir()?;
    let directory = data().join("kubectl");
    let steps = read(&directory.join("session.txt"))?;
    assert!(steps.len() > 100, "the session was not read");
    let kubeconfig = server.kubeconfig.clone();
    let runner = Runner { kubectl, kubeconfig, directory, home: home.path().into() };
    let failures = runner.run(&steps)?;
    assert!(failures.is_empty(), "{} failures:\n  {}", failures.len(), failures.join("\n  "));
    Ok(())
}
