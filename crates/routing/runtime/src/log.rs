//! Logs to stderr, with the verbosity of `-v`, in one of two formats.
//!
//! Files and rotation are not here: systemd or the container runtime stores the output.

use std::io;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::RuntimeError;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

impl FromStr for LogFormat {
    type Err = RuntimeError;

    fn from_str(text: &str) -> Result<Self, RuntimeError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(RuntimeError::LogFormat(other.to_owned())),
        }
    }
}

/// Whether log lines have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colors {
    /// As terminals show them.
    On,
    /// Plain text.
    Off,
}

/// Starts logging to stderr. `verbosity` is klog's `-v`; `RUST_LOG`, when set, takes precedence.
///
/// A second call has no effect.
pub fn init(verbosity: u8, format: LogFormat, colors: Colors) {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let (filter, refused) = filter(verbosity, asked.as_deref());
    if subscribe(filter, format, colors, io::stderr).try_init().is_ok()
        && let Some(why) = refused
    {
        tracing::warn!(error = why, "invalid RUST_LOG ignored; the level of -v applies");
    }
}

/// The filter in use, and the reason if `RUST_LOG` is rejected.
fn filter(verbosity: u8, asked: Option<&str>) -> (EnvFilter, Option<String>) {
    let own = || EnvFilter::new(directives(verbosity));
    match asked.map(EnvFilter::try_new) {
        None => (own(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(why)) => (own(), Some(why.to_string())),
    }
}

/// The filter directives for `-v`. Our crates are those whose names begin with nearhop.
fn directives(verbosity: u8) -> String {
    let ours = match verbosity {
        0..=2 => "info",
        3..=4 => "debug",
        5.. => "trace",
    };
    let others = match verbosity {
        0..=5 => "warn",
        6..=7 => "info",
        8.. => "debug",
    };
    // kube logs every failed request as an error. The caller logs the failure with its context, and
    // not on every attempt, so kube's own lines are off.
    let kube = if verbosity < 6 { ",kube_client::client::builder=off" } else { "" };
    format!("{others},nearhop={ours}{kube}")
}

fn subscribe<W>(
    filter: EnvFilter,
    format: LogFormat,
    colors: Colors,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let lines = lines.with_ansi(colors == Colors::On);
    match format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(verbosity: u8, asked: Option<&str>, format: LogFormat) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let (filter, _) = filter(verbosity, asked);
        let subscriber = subscribe(filter, format, Colors::Off, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "nearhop_core::route", "ours-info");
            tracing::debug!(target: "nearhop_core::route", "ours-debug");
            tracing::trace!(target: "nearhop", "ours-trace");
            tracing::warn!(target: "hyper", "theirs-warn");
            tracing::info!(target: "hyper", "theirs-info");
            tracing::debug!(target: "hyper", "theirs-debug");
            tracing::error!(target: "kube_client::client::builder", "kube-error");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().filter(|word| word.contains('-') && !word.contains(':')).collect()
    }

    #[test]
    fn verbosity_levels_match_klog() {
        let text = |v| logged(v, None, LogFormat::Text);
        assert_eq!(words(&text(0)), ["ours-info", "theirs-warn"]);
        assert_eq!(words(&text(2)), words(&text(0)));
        assert_eq!(words(&text(4)), ["ours-info", "ours-debug", "theirs-warn"]);
        assert_eq!(words(&text(5)), ["ours-info", "ours-debug", "ours-trace", "theirs-warn"]);
        assert_eq!(words(&text(6)).len(), 6);
        assert_eq!(words(&text(u8::MAX)).len(), 7);
    }

    #[test]
    fn a_valid_rust_log_replaces_the_level() {
        assert_eq!(words(&logged(9, Some("hyper=info"), LogFormat::Text)).len(), 2);
        let (_, refused) = filter(0, Some("nearhop=loud"));
        assert!(refused.is_some());
    }

    #[test]
    fn json_output_has_one_object_per_line() {
        let text = logged(0, None, LogFormat::Json);
        let line = text.lines().next().unwrap();
        assert!(line.starts_with('{') && line.contains("\"message\":\"ours-info\""), "{line}");
    }

    #[test]
    fn formats_are_text_and_json() {
        assert_eq!("text".parse::<LogFormat>().unwrap(), LogFormat::Text);
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
