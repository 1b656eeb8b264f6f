//! Times as Go parses and Kubernetes writes them: RFC 3339, in UTC, with whole seconds or exactly
//! six fractional digits. There is no clock and no time zone database: only the offset in the text
//! counts.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::civil::DateTime;

/// How many fractional digits of a second are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// `metav1.Time`; fractional digits are accepted and dropped.
    Seconds,
    /// `metav1.MicroTime`; exactly six fractional digits are required.
    Micros,
}

impl Precision {
    fn layout(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// The text as Kubernetes encodes it; `None` for Go's zero time, which is encoded as `null`.
///
/// # Errors
/// Go's error message.
pub(super) fn normalise(text: &str, precision: Precision) -> Result<Option<Cow<'_, str>>, String> {
    let mut reader = Reader { text, rest: text, precision };
    let read = reader.read()?;
    if read.is_zero() {
        return Ok(None);
    }
    let as_written = text.ends_with('Z') && text.len() == precision_length(precision);
    if as_written && !text.contains(',') {
        return Ok(Some(Cow::Borrowed(text)));
    }
    let utc = read.civil.checked_sub(SignedDuration::from_secs(read.offset_seconds.into()));
    let utc =
        utc.map_err(|_| format!("parsing time {text:?}: year is not in the range [0,9999]"))?;
    Ok(Some(Cow::Owned(write(utc, precision))))
}

/// Formats a time.
pub(super) fn write(utc: DateTime, precision: Precision) -> String {
    let head = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        utc.year(),
        utc.month(),
        utc.day(),
        utc.hour(),
        utc.minute(),
        utc.second()
    );
    match precision {
        Precision::Seconds => format!("{head}Z"),
        Precision::Micros => format!("{head}.{:06}Z", utc.subsec_nanosecond() / 1000),
    }
}

fn precision_length(precision: Precision) -> usize {
    match precision {
        Precision::Seconds => "2006-01-02T15:04:05Z".len(),
        Precision::Micros => "2006-01-02T15:04:05.000000Z".len(),
    }
}

struct Read {
    civil: DateTime,
    offset_seconds: i32,
}

impl Read {
    /// Whether it is the first instant of the year 1, which is Go's zero time.
    fn is_zero(&self) -> bool {
        self.offset_seconds == 0 && self.civil == DateTime::constant(1, 1, 1, 0, 0, 0, 0)
    }
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    precision: Precision,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<Read, String> {
        let year = self.digits(4, "2006")?;
        self.literal("-")?;
        let month = self.digits(2, "01")?;
        if !(1..=12).contains(&month) {
            return self.range("month out of range");
        }
        self.literal("-")?;
        let day = self.digits(2, "02")?;
        self.literal("T")?;
        let hour = self.digits(2, "15")?;
        if hour > 23 {
            return self.range("hour out of range");
        }
        self.literal(":")?;
        let minute = self.digits(2, "04")?;
        if minute > 59 {
            return self.range("minute out of range");
        }
        self.literal(":")?;
        let second = self.digits(2, "05")?;
        if second > 59 {
            return self.range("second out of range");
        }
        let nanos = self.fraction()?;
        let offset_seconds = self.zone()?;
        if !self.rest.is_empty() {
            return self.range(&format!("extra text: {:?}", self.rest));
        }
        // All values except the day are already in range.
        let civil = DateTime::new(
            year as i16,
            month as i8,
            day as i8,
            hour as i8,
            minute as i8,
            second as i8,
            nanos,
        );
        match civil {
            Ok(civil) => Ok(Read { civil, offset_seconds }),
            Err(_) => self.range("day out of range"),
        }
    }

    /// Parses exactly this many digits.
    fn digits(&mut self, count: usize, element: &str) -> Result<i32, String> {
        match self.rest.split_at_checked(count) {
            Some((head, rest)) if head.bytes().all(|b| b.is_ascii_digit()) => {
                self.rest = rest;
                head.parse().map_err(|_| self.cannot_parse(element))
            }
            _ => Err(self.cannot_parse(element)),
        }
    }

    fn literal(&mut self, expected: &str) -> Result<(), String> {
        self.rest = self.rest.strip_prefix(expected).ok_or_else(|| self.cannot_parse(expected))?;
        Ok(())
    }

    fn fraction(&mut self) -> Result<i32, String> {
        let after_point = self.rest.strip_prefix(['.', ',']);
        let count =
            after_point.map_or(0, |digits| digits.bytes().take_while(u8::is_ascii_digit).count());
        match self.precision {
            // Go accepts fractional digits even where the layout has none.
            Precision::Seconds if count == 0 => return Ok(0),
            Precision::Seconds => {}
            Precision::Micros if count < 6 => return Err(self.cannot_parse(".000000")),
            Precision::Micros => {}
        }
        let taken = if self.precision == Precision::Micros { 6 } else { count };
        let digits = after_point.and_then(|digits| digits.get(..taken)).unwrap_or_default();
        let nanos = format!("{digits:0<9}").get(..9).and_then(|nine| nine.parse().ok());
        self.rest = self.rest.get(1 + taken..).unwrap_or_default();
        Ok(nanos.unwrap_or(0))
    }

    fn zone(&mut self) -> Result<i32, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let parsed = self.rest.get(..6).and_then(|zone| {
            let sign = match zone.get(..1)? {
                "+" => 1,
                "-" => -1,
                _ => return None,
            };
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let two = |text: &str| {
                text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<i32>().ok())?
            };
            (hours.len() == 2).then_some(())?;
            Some((sign, two(hours)?, two(minutes)?))
        });
        let Some((sign, hours, minutes)) = parsed else {
            return Err(self.cannot_parse("Z07:00"));
        };
        if hours > 24 {
            return self.range("time zone offset hour out of range");
        }
        if minutes > 60 {
            return self.range("time zone offset minute out of range");
        }
        self.rest = self.rest.get(6..).unwrap_or_default();
        Ok(sign * (hours * 3600 + minutes * 60))
    }

    fn cannot_parse(&self, element: &str) -> String {
        let (text, rest, layout) = (self.text, self.rest, self.precision.layout());
        format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")
    }

    fn range<T>(&self, problem: &str) -> Result<T, String> {
        Err(format!("parsing time {:?}: {problem}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str, precision: Precision) -> String {
        match normalise(text, precision) {
            Ok(Some(text)) => text.into_owned(),
            Ok(None) => "null".to_owned(),
            Err(problem) => problem,
        }
    }

    #[test]
    fn times_are_written_in_utc_with_whole_seconds() {
        for (text, expected) in [
            ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("2026-01-01T00:00:00.987Z", "2026-01-01T00:00:00Z"),
            ("2026-01-01T01:30:00+02:00", "2025-12-31T23:30:00Z"),
            ("2026-01-01T00:00:00.5-00:30", "2026-01-01T00:30:00Z"),
            ("0001-01-01T00:00:00Z", "null"),
            (
                "yesterday",
                r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#,
            ),
            ("2026-13-01T00:00:00Z", r#"parsing time "2026-13-01T00:00:00Z": month out of range"#),
            ("2026-02-30T00:00:00Z", r#"parsing time "2026-02-30T00:00:00Z": day out of range"#),
            ("2026-01-01T00:00:00Zx", r#"parsing time "2026-01-01T00:00:00Zx": extra text: "x""#),
            (
                "2026-01-01T00:00:00",
                r#"parsing time "2026-01-01T00:00:00" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#,
            ),
            (
                "2026-01-01 00:00:00Z",
                r#"parsing time "2026-01-01 00:00:00Z" as "2006-01-02T15:04:05Z07:00": cannot parse " 00:00:00Z" as "T""#,
            ),
        ] {
            assert_eq!(both(text, Precision::Seconds), expected);
        }
    }

    #[test]
    fn micro_times_want_six_digits() {
        for (text, expected) in [
            ("2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123456Z"),
            ("2026-01-01T00:00:00.123456+01:00", "2025-12-31T23:00:00.123456Z"),
            (
                "2026-01-01T00:00:00.5Z",
                r#"parsing time "2026-01-01T00:00:00.5Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".5Z" as ".000000""#,
            ),
            (
                "2026-01-01T00:00:00Z",
                r#"parsing time "2026-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#,
            ),
            (
                "2026-01-01T00:00:00.1234567Z",
                r#"parsing time "2026-01-01T00:00:00.1234567Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "7Z" as "Z07:00""#,
            ),
        ] {
            assert_eq!(both(text, Precision::Micros), expected);
        }
    }
}
