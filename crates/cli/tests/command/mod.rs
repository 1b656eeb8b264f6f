//! Starts the program with a known environment.

use std::process::Command;

/// The program with these arguments. Variables of the developer that it reads are removed.
pub(crate) fn nearhop(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearhop"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("NEARHOP_")) {
            command.env_remove(name);
        }
    }
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"]
    {
        command.env_remove(name);
    }
    command.env("COLUMNS", "100").args(args);
    command
}

/// The text of an output.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the output is UTF-8")
}
