//! Times as Go parses and Kubernetes writes them: RFC 3339, in UTC, with whole seconds or exactly
//! six fractional digits. There is no clock and no time zone database: only the offset in the text
//! counts.

use std::borrow::Cow;
use std::ops::RangeInclusive;

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
    let (civil, offset_seconds) = reader.read()?;
    // The first instant of the year 1 is Go's zero time.
    if offset_seconds == 0 && civil == DateTime::constant(1, 1, 1, 0, 0, 0, 0) {
        return Ok(None);
    }
    // In UTC the layout's offset is absent.
    let written_length = precision.layout().len() - "07:00".len();
    let as_written = text.ends_with('Z') && text.len() == written_length;
    if as_written && !text.contains(',') {
        return Ok(Some(Cow::Borrowed(text)));
    }
    let utc = civil.checked_sub(SignedDuration::from_secs(offset_seconds.into()));
    let utc =
        utc.map_err(|_| format!("parsing time {text:?}: year is not in the range [0,9999]"))?;
    Ok(Some(Cow::Owned(write(utc, precision))))
}

pub(super) fn write(utc: DateTime, precision: Precision) -> String {
    let format = match precision {
        Precision::Seconds => "%Y-%m-%dT%H:%M:%SZ",
        Precision::Micros => "%Y-%m-%dT%H:%M:%S.%6fZ",
    };
    utc.strftime(format).to_string()
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    precision: Precision,
}

impl Reader<'_> {
    /// The date and time, and the offset from UTC in seconds.
    fn read(&mut self) -> Result<(DateTime, i32), String> {
        let year = self.digits(4, "2006")?;
        let month = self.part("-", "01", 1..=12, "month")?;
        // The calendar checks the day.
        let day = self.part("-", "02", 0..=99, "day")?;
        let hour = self.part("T", "15", 0..=23, "hour")?;
        let minute = self.part(":", "04", 0..=59, "minute")?;
        let second = self.part(":", "05", 0..=59, "second")?;
        let nanos = self.fraction()?;
        let offset_seconds = self.zone()?;
        if !self.rest.is_empty() {
            return self.range(&format!("extra text: {:?}", self.rest));
        }
        let civil = DateTime::new(year as i16, month, day, hour, minute, second, nanos);
        match civil {
            Ok(civil) => Ok((civil, offset_seconds)),
            Err(_) => self.range("day out of range"),
        }
    }

    /// Parses a separator and two digits within a range.
    fn part(
        &mut self,
        separator: &str,
        element: &str,
        range: RangeInclusive<i32>,
        name: &str,
    ) -> Result<i8, String> {
        self.literal(separator)?;
        let value = self.digits(2, element)?;
        if range.contains(&value) {
            return Ok(value as i8);
        }
        self.range(&format!("{name} out of range"))
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
        let taken = match self.precision {
            // Go accepts fractional digits even where the layout has none.
            Precision::Seconds if count == 0 => return Ok(0),
            Precision::Seconds => count,
            Precision::Micros if count < 6 => return Err(self.cannot_parse(".000000")),
            Precision::Micros => 6,
        };
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
    fn micro_times_have_six_digits() {
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
