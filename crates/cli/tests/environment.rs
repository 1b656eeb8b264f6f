//! Flags by environment variables, as a user sets them.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod command;

use std::process::Output;

use command::{nearhop, text};

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    nearhop(args).envs(variables.iter().copied()).output().unwrap()
}

fn namespace(variables: &[(&str, &str)], args: &[&str]) -> (String, String) {
    let output = run(&[&["manifests"], args].concat(), variables);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let yaml = text(&output.stdout);
    let line = yaml.lines().find_map(|line| line.trim().strip_prefix("namespace: ")).unwrap();
    (line.to_owned(), text(&output.stderr))
}

#[test]
fn a_variable_sets_the_flag_of_its_command() {
    let (found, stderr) = namespace(&[("NEARHOP_MANIFESTS_NAMESPACE", "shop")], &[]);
    assert_eq!((found.as_str(), stderr.as_str()), ("shop", ""));
    let (found, _) = namespace(&[("NEARHOP_MANIFESTS_NAMESPACE", "shop")], &["-n", "flag"]);
    assert_eq!(found, "flag");
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let empty = [("NEARHOP_MANIFESTS_NAMESPACE", ""), ("NEARHOP_NAMESPACE", "")];
    assert_eq!(namespace(&empty, &[]), ("kube-system".to_owned(), String::new()));
    // An empty name of a lab once was a name.
    let output = run(
        &["lab", "status"],
        &[("NEARHOP_LAB_NAME", ""), ("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"))],
    );
    assert!(!text(&output.stderr).contains("``"), "{}", text(&output.stderr));
}

#[test]
fn a_former_name_still_works_with_a_warning_that_names_the_present_one() {
    let (found, stderr) = namespace(&[("NEARHOP_NAMESPACE", "old")], &[]);
    let warning = "warning: NEARHOP_NAMESPACE is a former name; set NEARHOP_MANIFESTS_NAMESPACE \
                   instead\n";
    assert_eq!((found.as_str(), stderr.as_str()), ("old", warning));
    // Only where it is used.
    let (_, stderr) = namespace(&[("NEARHOP_NAMESPACE", "old")], &["-n", "flag"]);
    assert_eq!(stderr, "");
    let output = run(&["version", "--client"], &[("NEARHOP_NAMESPACE", "old")]);
    assert_eq!(text(&output.stderr), "");
    let both = [("NEARHOP_NAMESPACE", "old"), ("NEARHOP_MANIFESTS_NAMESPACE", "new")];
    assert_eq!(namespace(&both, &[]), ("new".to_owned(), String::new()));
}

#[test]
fn a_variable_of_one_command_does_not_change_another() {
    let output = run(&["manifests"], &[("NEARHOP_LAB_EXEC_NAMESPACE", "A B")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn the_error_of_an_invalid_value_names_the_variable() {
    let output = run(&["manifests"], &[("NEARHOP_MANIFESTS_NAMESPACE", "A B")]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("expected the name of a Namespace"), "{stderr}");
    let note = "note: --namespace has this value from the variable NEARHOP_MANIFESTS_NAMESPACE";
    assert!(stderr.contains(note), "{stderr}");
    let output = run(&["manifests", "-n", "A B"], &[("NEARHOP_MANIFESTS_NAMESPACE", "shop")]);
    assert!(!text(&output.stderr).contains("note:"), "{}", text(&output.stderr));
}

#[test]
fn switches_take_words_and_numbers() {
    for (value, quiet) in [("1", true), ("true", true), ("yes", true), ("0", false), ("no", false)]
    {
        let variables = [("NEARHOP_VERSION_CLIENT", value), ("KUBECONFIG", "/no/such/file")];
        let output = run(&["version"], &variables);
        assert_eq!(!text(&output.stdout).contains("server"), quiet, "{value}");
    }
}
