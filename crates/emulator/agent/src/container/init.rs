//! The first process of a container: it builds the file system, then executes the program.

use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::sethostname;

use super::{ContainerSpec, NOT_STARTED, Program, Report, privileges, read, root, shim};

pub(super) fn main(file: &Path) -> ExitCode {
    let Ok(mut socket) = shim::socket() else { return ExitCode::FAILURE };
    let prepared = prepare(file);
    let (mut command, started) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return fail(&mut socket, why),
    };
    shim::report(&mut socket, &started);
    let error = command.exec();
    let program = command.get_program().to_string_lossy().into_owned();
    fail(&mut socket, format!("exec {program:?}: {error}"))
}

fn fail(socket: &mut std::os::unix::net::UnixStream, why: String) -> ExitCode {
    shim::report(socket, &Report::Failed { why });
    ExitCode::from(u8::try_from(NOT_STARTED).expect("an exit code"))
}

/// The program as a command, and the report with this process's id in the agent's `/proc`.
fn prepare(file: &Path) -> Result<(Command, Report), String> {
    die_with_shim()?;
    privileges::hide()?;
    let spec: ContainerSpec = read(file)?;
    let pid = outer_pid().map_err(|error| format!("cannot read /proc/self: {error}"))?;
    sethostname(&spec.hostname).map_err(|errno| format!("cannot set the hostname: {errno}"))?;
    // Their paths are not reachable in the new root.
    let binary = File::open("/proc/self/exe")
        .map_err(|error| format!("cannot open /proc/self/exe: {error}"))?;
    let user = File::open(&spec.user_namespace);
    let user = user.map_err(|error| format!("cannot open the user namespace: {error}"))?;
    root::enter(&spec)?;
    privileges::give_streams(spec.identity);
    privileges::enter_user_namespace(&user)?;
    privileges::lock_mounts()?;
    privileges::restrict()?;
    // A change of user clears the parent-death signal.
    die_with_shim()?;
    let mut command = program(&spec, binary)?;
    command.env_clear().envs(spec.env.iter().cloned()).stdin(Stdio::null());
    let directory = spec.directory.as_deref().unwrap_or(Path::new("/"));
    std::env::set_current_dir(directory)
        .map_err(|error| format!("workingDir {}: {error}", directory.display()))?;
    Ok((command, Report::Started { pid }))
}

fn die_with_shim() -> Result<(), String> {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| format!("cannot set the parent-death signal: {errno}"))
}

/// This process's id in the current `/proc`.
pub(super) fn outer_pid() -> io::Result<u32> {
    let number = fs::read_link("/proc/self")?;
    let number = number.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other("not a process id"))
}

fn program(spec: &ContainerSpec, binary: File) -> Result<Command, String> {
    match &spec.program {
        Program::Host(words) => {
            let (first, rest) = words.split_first().ok_or("the command is empty")?;
            let path = find(first, &spec.env)
                .ok_or_else(|| format!("exec: {first:?}: executable file not found in $PATH"))?;
            let mut command = Command::new(path);
            command.arg0(first).args(rest);
            Ok(command)
        }
        Program::BuiltIn(image, arguments) => {
            // The container cannot change its mount of the binary. If the binary was replaced
            // meanwhile, there is no such mount, and the open file is executed.
            let mut command = match Path::new(root::BINARY).exists() {
                true => Command::new(root::BINARY),
                false => Command::new(format!("/proc/self/fd/{}", binary.into_raw_fd())),
            };
            command.arg0(format!("/{image}")).args(["image", image]).args(arguments);
            Ok(command)
        }
    }
}

/// Resolves a command's first word by `PATH`.
pub(super) fn find(word: &str, env: &[(String, String)]) -> Option<std::path::PathBuf> {
    if word.contains('/') {
        return Path::new(word).exists().then(|| word.into());
    }
    let path = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let places = path.unwrap_or(root::DEFAULT_PATH).split(':').filter(|place| !place.is_empty());
    places.map(|place| Path::new(place).join(word)).find(|file| file.is_file())
}
