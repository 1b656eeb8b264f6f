//! How a program ended, or why it could not be executed, with the exit codes of shells: 127 if it was
//! not found, 126 if it was found and cannot be executed, 128 plus the number of the signal that ended
//! it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// A program that could not be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotExecuted {
    /// The exit code that a shell would return.
    pub code: u8,
    /// The message, without a prefix.
    pub message: String,
}

/// The exit code for a program that was not found.
pub const NOT_FOUND: u8 = 127;

/// The exit code for a program that cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;

/// The exit code after signal N is this plus N.
pub const SIGNALLED: u8 = 128;

/// Reaps children that have ended; returns the exit code of `main` if it is one of them.
pub fn reap(main: Pid) -> Option<u8> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == main => {
                return Some(u8::try_from(code & 0xff).expect("eight bits"));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                return Some(SIGNALLED + u8::try_from(signal as i32).unwrap_or(0));
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

impl NotExecuted {
    /// Explains the error of `exec`. `word` is the first word of the command; a word without a slash
    /// was looked up in `path`.
    pub fn explain(word: &str, path: Option<&OsStr>, error: &io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        let found = find(word, path);
        let (code, why) = match (errno, &found) {
            (Errno::ENOENT | Errno::ENOTDIR, None) => (NOT_FOUND, "not found"),
            // A directory of the path cannot be searched; shells ignore it.
            (Errno::EACCES, None) if !word.contains('/') => (NOT_FOUND, "not found"),
            (Errno::ENOENT, Some(_)) => {
                (NOT_EXECUTABLE, "the interpreter in its first line was not found")
            }
            (Errno::EACCES | Errno::EPERM, Some(file)) if file.is_dir() => {
                (NOT_EXECUTABLE, "is a directory")
            }
            (Errno::EACCES | Errno::EPERM, _) => (NOT_EXECUTABLE, "permission denied"),
            (Errno::ENOEXEC, _) => (NOT_EXECUTABLE, "not a program for this machine"),
            (other, _) => (NOT_EXECUTABLE, other.desc()),
        };
        Self { code, message: format!("{word}: {why}") }
    }
}

/// The file that a shell would find for the word.
fn find(word: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    if word.contains('/') {
        return Path::new(word).exists().then(|| word.into());
    }
    let places = std::env::split_paths(path?).map(|place| place.join(word));
    places.into_iter().find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    fn explained(word: &str) -> (u8, String) {
        let error = Command::new(word).spawn().expect_err("it cannot be executed");
        let NotExecuted { code, message } =
            NotExecuted::explain(word, std::env::var_os("PATH").as_deref(), &error);
        (code, message)
    }

    #[test]
    fn codes_and_messages_are_those_of_a_shell() {
        let dir = std::env::temp_dir().join(format!("nearhop-program-{}", std::process::id()));
        fs::create_dir(&dir).expect("a new directory");
        let file = |name: &str, text: &str, mode: u32| {
            let path = dir.join(name);
            fs::write(&path, text).expect("a new file");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our own file");
            path.display().to_string()
        };
        let plain = file("plain", "x", 0o644);
        let lost = file("lost", "#!/no/such/interpreter\n", 0o755);
        let place = dir.display().to_string();
        let cases = [
            ("nosuchcmd", 127, "nosuchcmd: not found".to_owned()),
            ("/no/such/file", 127, "/no/such/file: not found".to_owned()),
            (&plain, 126, format!("{plain}: permission denied")),
            (&place, 126, format!("{place}: is a directory")),
            (&lost, 126, format!("{lost}: the interpreter in its first line was not found")),
        ];
        let found: Vec<_> = cases.iter().map(|(word, ..)| explained(word)).collect();
        fs::remove_dir_all(&dir).expect("our own directory");
        let unsearchable = io::Error::from_raw_os_error(Errno::EACCES as i32);
        let unfound = NotExecuted::explain("nosuchcmd", Some(OsStr::new("/none")), &unsearchable);
        assert_eq!(unfound.code, 127, "as a user who may not search a directory of PATH");
        for ((word, code, message), found) in cases.into_iter().zip(found) {
            assert_eq!(found, (code, message), "{word}");
        }
    }
}
