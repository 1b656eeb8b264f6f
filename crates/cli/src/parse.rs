//! Values of flags that more than one command takes.

use std::time::Duration;

use clap::Args as ClapArgs;
use jiff::SignedDuration;
use nearhop_core::hint::capacity::MaxUnzonedShare;
use nearhop_runtime::log::LogFormat;

/// How much is logged, and how.
#[derive(Debug, ClapArgs)]
pub(crate) struct LogArgs {
    /// How much is logged: 0 to 2 usual, 3 and 4 every write, 5 and more everything.
    #[arg(short = 'v', value_name = "LEVEL", default_value_t = 2)]
    pub(crate) verbosity: u8,

    /// Form of the log.
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Reads `500ms`, `2s`, `1m30s` or `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 500ms, 2s or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let duration: SignedDuration = text.parse().map_err(|_| expected())?;
    Duration::try_from(duration).map_err(|_| expected())
}

/// Reads `10%` or `12.5%`.
pub(crate) fn parse_share(text: &str) -> Result<MaxUnzonedShare, String> {
    let expected = || "expected a percentage from 0% to 100%, such as 10% or 12.5%".to_owned();
    let number: f64 = text.strip_suffix('%').and_then(|n| n.parse().ok()).ok_or_else(expected)?;
    if !(0.0..=100.0).contains(&number) {
        return Err(expected());
    }
    Ok(MaxUnzonedShare((number * 10.0).round() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_writes_them() {
        for (text, millis) in [("0", 0), ("0s", 0), ("500ms", 500), ("2s", 2000), ("1m30s", 90_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "5", "-1s", "fast"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("12.5%"), Ok(MaxUnzonedShare(125)));
        for bad in ["", "10", "-1%", "101%", "NaN%"] {
            assert!(parse_share(bad).is_err(), "{bad:?}");
        }
    }
}
