//! The caller's side of a command in a network namespace of the lab.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, PipeReader, Read, Write, pipe};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nearhop_net::program::SIGNALLED;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::channel::{Channel, Received};
use super::shim::{Event, Order, Start};
use super::signals::{ENDING, Signals};
use super::terminal::{self, RawMode};
use super::{Input, Screen, Session};
use crate::LabError;
use crate::control::{Place, Request};
use crate::spec::control_socket;

/// How long a command may run after a signal that ends the caller.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a command; returns its exit code.
pub fn run(state: &Path, place: Place, session: &Session) -> Result<u8, LabError> {
    let failed = |what: &'static str| move |cause| LabError::Exec { what, cause };
    let socket = UnixStream::connect(control_socket(state));
    let mut channel = Channel::new(socket.map_err(failed("connect to the lab"))?);
    channel.send(&Request::Exec(place)).map_err(failed("send the command to the lab"))?;
    match channel.receive().map_err(failed("read the answer of the lab"))? {
        Some(Event::Attached) => {}
        Some(Event::Refused(why)) => return Err(LabError::ExecRefused(why)),
        Some(Event::Ended(_)) | None => return Err(LabError::Ended),
    }
    let signals = Signals::of_caller().map_err(failed("read signals"))?;
    let mut caller = Caller::start(channel, signals, session)
        .map_err(failed("connect the command to this terminal"))?;
    let code = caller.follow();
    let code = code.map_err(failed("exchange messages with the lab"))??;
    caller.finish_output();
    Ok(code)
}

struct Caller {
    channel: Channel,
    signals: Signals,
    /// First signal that ends the caller, and when the command is killed.
    ending: Option<(Signal, Instant)>,
    screen: Option<OwnTerminal>,
    printed: Printed,
}

/// The caller's end of the command's terminal.
struct OwnTerminal {
    end: OwnedFd,
    raw: Option<RawMode>,
    /// Readable when standard output is closed, and ends when all output is written.
    printed: PipeReader,
}

/// What the copying of the command's output reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printed {
    /// It goes on.
    More,
    /// The command has closed its terminal, and all output is written.
    All,
    /// Standard output is closed.
    Refused,
}

/// What ends waiting for the command.
type Outcome = Result<u8, LabError>;

impl Caller {
    fn start(mut channel: Channel, signals: Signals, session: &Session) -> io::Result<Self> {
        let start = Start {
            command: session.command.clone(),
            directory: std::env::current_dir()?.into(),
            env: std::env::vars_os().collect(),
            screen: session.screen,
        };
        let screen = match session.screen {
            Screen::Streams => {
                let empty = OpenOptions::new().read(true).open("/dev/null")?;
                let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
                let input = match session.input {
                    Input::Passed => input.as_fd(),
                    Input::Empty => empty.as_fd(),
                };
                channel.send_with(&start, &[input, output.as_fd(), errors.as_fd()])?;
                None
            }
            Screen::Terminal => {
                let (end, theirs) = terminal::open()?;
                let theirs: BorrowedFd<'_> = theirs.as_fd();
                channel.send_with(&start, &[theirs, theirs, theirs])?;
                Some(OwnTerminal::connect(end, session.input)?)
            }
        };
        Ok(Self { channel, signals, ending: None, screen, printed: Printed::More })
    }

    /// Waits for the end of the command.
    fn follow(&mut self) -> io::Result<Outcome> {
        loop {
            let left = self.ending.map(|(_, end)| end.saturating_duration_since(Instant::now()));
            let timeout = left.map(|left| Timespec::try_from(left).expect("a few seconds"));
            let mut watched = vec![
                PollFd::new(&self.channel, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            if let Some(screen) = self.screen.as_ref().filter(|_| self.printed == Printed::More) {
                watched.push(PollFd::new(&screen.printed, PollFlags::IN));
            }
            let ready = retry_on_intr(|| poll(&mut watched, timeout.as_ref()))?;
            let has_mail = !watched[0].revents().is_empty();
            let has_printed = watched.get(2).is_some_and(|it| !it.revents().is_empty());
            drop(watched);
            if has_mail && let Some(outcome) = self.read_mail()? {
                return Ok(outcome);
            }
            while let Some(signal) = self.signals.next()? {
                if let Some(code) = self.handle(signal)? {
                    return Ok(Ok(code));
                }
            }
            if has_printed && self.read_printed() == Printed::Refused {
                // As a local command whose reader has gone.
                return Ok(Ok(self.abort(Signal::SIGPIPE)));
            }
            if let Some((signal, _)) = self.ending
                && ready == 0
            {
                return Ok(Ok(self.abort(signal)));
            }
        }
    }

    fn read_mail(&mut self) -> io::Result<Option<Outcome>> {
        let received = self.channel.fill().unwrap_or(Received::End);
        match self.channel.next()? {
            Some(Event::Ended(code)) => Ok(Some(Ok(code))),
            Some(Event::Refused(why)) => Ok(Some(Err(LabError::ExecRefused(why)))),
            Some(Event::Attached) | None if received == Received::End => {
                Ok(Some(Err(LabError::Ended)))
            }
            Some(Event::Attached) | None => Ok(None),
        }
    }

    /// Passes a signal to the command; a second one that ends the caller kills the command.
    fn handle(&mut self, signal: Signal) -> io::Result<Option<u8>> {
        if signal == Signal::SIGWINCH {
            self.resize();
            return Ok(None);
        }
        if ENDING.contains(&signal) {
            if self.ending.is_some() {
                return Ok(Some(self.abort(signal)));
            }
            self.ending = Some((signal, Instant::now() + GRACE));
        }
        if let Err(error) = self.channel.send(&Order::Signal(signal as i32))
            && !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        {
            // Without a connection the command has ended, and its exit code can be read.
            return Err(error);
        }
        match (signal, &self.screen) {
            (Signal::SIGTSTP, _) => kill(Pid::this(), Signal::SIGSTOP)?,
            (Signal::SIGCONT, Some(OwnTerminal { raw: Some(raw), .. })) => {
                raw.set()?;
                self.resize();
            }
            _ => {}
        }
        Ok(None)
    }

    fn resize(&self) {
        if let Some(screen) = &self.screen {
            // The command may have ended.
            let _ = rustix::termios::tcsetwinsize(&screen.end, terminal::size());
        }
    }

    fn read_printed(&mut self) -> Printed {
        if let Some(screen) = &mut self.screen {
            self.printed = match screen.printed.read(&mut [0]) {
                Ok(1..) => Printed::Refused,
                Ok(0) | Err(_) => Printed::All,
            };
        }
        self.printed
    }

    /// Kills the command and waits for its end.
    fn abort(&mut self, signal: Signal) -> u8 {
        self.channel.finish();
        let _killed = self.wait_for_end();
        SIGNALLED + u8::try_from(signal as i32).expect("a signal's number is small")
    }

    fn wait_for_end(&mut self) -> Option<u8> {
        let deadline = Instant::now() + GRACE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a few seconds");
            let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut watched, Some(&timeout))).unwrap_or(0) == 0 {
                return None;
            }
            match self.read_mail() {
                Ok(None) => {}
                Ok(Some(outcome)) => return outcome.ok(),
                Err(_) => return None,
            }
        }
    }

    /// Waits until all output of the command's terminal is written, or a signal ends the caller.
    fn finish_output(&mut self) {
        while let Some(screen) = self.screen.as_ref().filter(|_| self.printed == Printed::More) {
            let mut watched = [
                PollFd::new(&screen.printed, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            if retry_on_intr(|| poll(&mut watched, None)).is_err() {
                return;
            }
            if !watched[0].revents().is_empty() {
                self.read_printed();
            }
            while let Ok(Some(signal)) = self.signals.next() {
                if ENDING.contains(&signal) {
                    return;
                }
            }
        }
    }
}

impl OwnTerminal {
    /// Copies between the caller's streams and the command's terminal, in threads: a write to a slow
    /// terminal must not delay signals.
    fn connect(end: OwnedFd, input: Input) -> io::Result<Self> {
        let (printed, mut report) = pipe()?;
        let mut output = File::from(end.try_clone()?);
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            if copy(&mut output, &mut io::stdout().lock()) == Copied::NotWritten {
                // The caller may have ended.
                let _ = report.write_all(b"!");
            }
        })?;
        let mut raw = None;
        if input == Input::Passed {
            raw = Some(RawMode::enter()?);
            let mut keys = File::from(end.try_clone()?);
            // It ends with the process.
            thread::Builder::new()
                .name("input".to_owned())
                .spawn(move || copy(&mut io::stdin().lock(), &mut keys))?;
        }
        Ok(Self { end, raw, printed })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    All,
    NotWritten,
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> Copied {
    let mut buffer = [0; 16 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Copied::All,
            Ok(count) => {
                if to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
                    return Copied::NotWritten;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A terminal whose other end is closed cannot be read.
            Err(_) => return Copied::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_after_the_end_of_the_command_keeps_its_exit_code() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut shim = Channel::new(theirs);
        shim.send(&Event::Ended(7)).expect("sent");
        drop(shim);
        let mut caller = Caller {
            channel: Channel::new(ours),
            signals: Signals::of_caller().expect("signals"),
            ending: None,
            screen: None,
            printed: Printed::More,
        };
        assert_eq!(caller.handle(Signal::SIGTERM).expect("no connection is needed"), None);
        let code = caller.follow().expect("no error").expect("the command has ended");
        assert_eq!(code, 7);
    }
}
