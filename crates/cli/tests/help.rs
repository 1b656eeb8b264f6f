//! The help of every command, as a user reads it. The texts are in `help/`, so that a change of a
//! text is read in review; `UPDATE_GOLDEN=1` writes them again.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod command;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use command::{nearhop, text};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/help");

/// The help of a command, and of all commands that it lists.
fn collect(path: &[&str], found: &mut Vec<(String, String)>) {
    let output = nearhop(path).arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{path:?}: {}", text(&output.stderr));
    let help = text(&output.stdout);
    let name = std::iter::once("nearhop").chain(path.iter().copied()).collect::<Vec<_>>().join("-");
    let below: Vec<String> = subcommands(&help);
    found.push((name, help));
    for sub in below.iter().filter(|name| *name != "help") {
        collect(&[path, &[sub]].concat(), found);
    }
}

/// The names below `Commands:`.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| line.starts_with(' '));
    // Lines of a description begin further to the right.
    let names = lines.filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn the_help_of_every_command_is_as_reviewed() {
    let mut found = Vec::new();
    collect(&[], &mut found);
    assert!(found.len() > 20, "only {} commands found", found.len());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _ = fs::remove_dir_all(GOLDEN);
        fs::create_dir_all(GOLDEN).unwrap();
        for (name, help) in &found {
            fs::write(Path::new(GOLDEN).join(format!("{name}.txt")), help).unwrap();
        }
        return;
    }
    let cure = "read the new text, then run this test with UPDATE_GOLDEN=1";
    for (name, help) in &found {
        let file = Path::new(GOLDEN).join(format!("{name}.txt"));
        let golden = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(*help, golden, "{}: {cure}", file.display());
    }
    let expected: BTreeSet<String> = found.iter().map(|(name, _)| format!("{name}.txt")).collect();
    let files = fs::read_dir(GOLDEN).unwrap();
    for file in files.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(expected.contains(&file), "{file}: no such command; {cure}");
    }
}

/// Lines of 100 columns fit into most terminals and into code review.
#[test]
fn no_line_of_the_help_is_too_long() {
    let mut found = Vec::new();
    collect(&[], &mut found);
    for (name, help) in found {
        for line in help.lines().filter(|line| !line.starts_with("Usage:")) {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
    }
}

#[test]
fn short_and_long_help_flags_print_the_same() {
    for path in [&[][..], &["proxy"], &["lab", "up"]] {
        let print = |flag| text(&nearhop(path).arg(flag).output().unwrap().stdout);
        assert_eq!(print("-h"), print("--help"), "{path:?}");
    }
}

#[test]
fn help_has_colours_only_when_asked_or_on_a_terminal() {
    let help = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = nearhop(args);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        text(&output.stdout).contains('\u{1b}')
    };
    assert!(!help(&["--help"], &[]));
    assert!(help(&["--color", "always", "--help"], &[]));
    assert!(help(&["lab", "--color=always", "up", "--help"], &[]));
    assert!(help(&["--help"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!help(&["--help"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(help(&["--color=always", "--help"], &[("NO_COLOR", "1")]));
    assert!(help(&["--help"], &[("NEARHOP_COLOR", "always")]));
    assert!(!help(&["--color=never", "--help"], &[("CLICOLOR_FORCE", "1")]));
}

#[test]
fn errors_have_colours_when_asked() {
    let stderr = |args: &[&str]| text(&nearhop(args).output().unwrap().stderr);
    let message = "kubeconfig /no/such does not exist; pass --kubeconfig or set KUBECONFIG\n";
    let plain = stderr(&["explain", "dns", "db", "--kubeconfig", "/no/such"]);
    assert_eq!(plain, format!("error: {message}"));
    let args = ["--color=always", "explain", "dns", "db", "--kubeconfig", "/no/such"];
    let painted = stderr(&args);
    assert!(painted.starts_with("\u{1b}[") && painted.ends_with(message), "{painted:?}");
}

#[test]
fn a_closed_pipe_ends_every_printing_command_quietly() {
    use std::io::Read as _;
    use std::process::Stdio;
    let shell: &[&[&str]] = &[
        &["--help"],
        &["lab", "--help"],
        &["--version"],
        &["version", "--client"],
        &["manifests"],
        &["manifests", "-o", "json"],
        &["completion", "bash"],
    ];
    for args in shell {
        let mut command = nearhop(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn completion_scripts_know_the_commands_of_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = nearhop(&["completion", shell]).output().unwrap();
        let script = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(script.contains("service-proxy-name") && script.contains("conform"), "{shell}");
        assert!(!script.contains("lab-supervisor"), "{shell} offers a hidden command");
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("completion.bash");
    fs::write(&file, nearhop(&["completion", "bash"]).output().unwrap().stdout).unwrap();
    if let Ok(status) = std::process::Command::new("bash").arg("-n").arg(&file).status() {
        assert!(status.success(), "the script is not valid bash");
    }
}

#[test]
fn manual_pages_exist_for_every_command() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manpages");
    let _ = fs::remove_dir_all(&directory);
    let output = nearhop(&["manpages", directory.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for page in ["nearhop.1", "nearhop-proxy.1", "nearhop-lab-up.1"] {
        let page = fs::read_to_string(directory.join(page)).expect(page);
        assert!(page.contains(".SH NAME") && page.contains("Examples:"), "{page}");
    }
    assert!(!directory.join("nearhop-container.1").exists(), "a hidden command has a page");
}
