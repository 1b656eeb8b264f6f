//! `nearhop`: the only binary. Reads arguments and files and returns exit codes; the other crates
//! do the work.

mod agent;
mod apiserver;
mod color;
mod commands;
mod completion;
mod conform;
mod controller;
mod daemon;
mod demo;
mod dns;
mod environment;
mod explain;
mod help;
mod lab;
mod manager;
mod manifests;
mod output;
mod parse;
mod proxy;
mod version;

use std::process::ExitCode;

pub(crate) use output::complain;

/// Exit code of an error.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    color::apply(&args);
    let (command, settings) = environment::attach(commands::all(), &environment::is_set);
    let matches = help::arrange(command).try_get_matches().unwrap_or_else(|error| {
        let Some(setting) = environment::origin_of(&error, &settings, &args) else { error.exit() };
        let _closed = error.print();
        complain(&format!("note: {}", setting.note()));
        std::process::exit(error.exit_code())
    });
    environment::warn_about_former_names(&settings, &matches);
    let command = commands::read(&matches).unwrap_or_else(|error| error.exit());
    commands::run(command).unwrap_or_else(|error| {
        complain(&format!("error: {}", output::describe(&error)));
        ExitCode::from(USAGE)
    })
}
