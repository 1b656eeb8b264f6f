//! Kubernetes quantities: `100m`, `1.5Gi`, `1e3`.

/// Decimal suffixes with their powers of ten.
pub const DECIMAL_SUFFIXES: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Binary suffixes: each multiplies by 1024 once more than the one before.
pub const BINARY_SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Why a text is not a quantity, with the messages of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not match the grammar of quantities.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The number has no digits.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `12e6`: a power of ten.
    Exponent(i32),
    /// `12Mi`: a power of 1024.
    Binary(u32),
    /// `12M`: a power of ten that has a suffix.
    Decimal(i32),
}

/// A quantity split into its parts, without a length limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Whether the sign is `-`.
    pub negative: bool,
    /// ASCII digits before the point without leading zeros; at least one.
    pub whole: &'a str,
    /// ASCII digits after the point.
    pub fraction: &'a str,
    /// The unit.
    pub unit: Unit,
    /// Whether the number has digits: Kubernetes accepts some texts without digits.
    pub has_digits: bool,
}

impl<'a> Parts<'a> {
    /// Splits a quantity.
    pub fn parse(text: &'a str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let unpadded = rest.trim_start_matches('0');
        let (whole, after) = unpadded.split_at(count_digits(unpadded));
        let (fraction, suffix) = match after.strip_prefix('.') {
            Some(after) => after.split_at(count_digits(after)),
            None => ("", after),
        };
        let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let power = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if count_digits(power) < power.len() {
            return Err(QuantityError::Format);
        }
        Ok(Self {
            negative: text.starts_with('-'),
            has_digits: unpadded.len() < rest.len() || !whole.is_empty() || !fraction.is_empty(),
            whole: if whole.is_empty() { "0" } else { whole },
            fraction,
            unit: parse_unit(suffix).ok_or(QuantityError::Suffix)?,
        })
    }
}

fn count_digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn parse_unit(suffix: &str) -> Option<Unit> {
    if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(Unit::Decimal(*power));
    }
    if let Some(at) = BINARY_SUFFIXES.iter().position(|name| *name == suffix) {
        return Some(Unit::Binary(u32::try_from(at).ok()? + 1));
    }
    let power: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Go truncates the exponent to 32 bits.
    Some(Unit::Exponent(power as i32))
}

/// Parses a quantity of CPU as thousandths of a core, rounded up. Returns `None` for a negative
/// quantity and for one that is out of range.
pub fn parse_cpu(text: &str) -> Option<u64> {
    u64::try_from(parse_milli(text)?).ok()
}

/// Parses any quantity as thousandths, rounded away from zero.
pub fn parse_milli(text: &str) -> Option<i128> {
    let parts = Parts::parse(text).ok().filter(|parts| parts.has_digits)?;
    let (power, factor) = match parts.unit {
        Unit::Decimal(power) | Unit::Exponent(power) => (power, 1),
        Unit::Binary(power) => (0, 1024_u128.pow(power)),
    };
    let mantissa: u128 = format!("{}{}", parts.whole, parts.fraction).parse().ok()?;
    let power = i64::from(power) + 3 - i64::try_from(parts.fraction.len()).ok()?;
    let milli = i128::try_from(scale(mantissa.checked_mul(factor)?, power)?).ok()?;
    Some(if parts.negative { -milli } else { milli })
}

/// `mantissa` times ten to the given power, rounded up. Returns `None` if the result is too large.
fn scale(mantissa: u128, power: i64) -> Option<u128> {
    let factor = u32::try_from(power.unsigned_abs()).ok().and_then(|p| 10_u128.checked_pow(p));
    match factor {
        _ if mantissa == 0 => Some(0),
        Some(factor) if power >= 0 => mantissa.checked_mul(factor),
        Some(divisor) => Some(mantissa.div_ceil(divisor)),
        None => (power < 0).then_some(1),
    }
}

/// Formats thousandths of a core as the API does: whole cores, else thousandths.
pub fn format_cpu(milli: u64) -> String {
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_parsed_in_thousandths() {
        for (text, milli) in [
            ("4", Some(4000)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("4.", Some(4000)),
            ("500m", Some(500)),
            ("+2", Some(2000)),
            ("1.5m", Some(2)),
            ("1n", Some(1)),
            ("1500u", Some(2)),
            ("1000000n", Some(1)),
            ("0n", Some(0)),
            ("2k", Some(2_000_000)),
            ("1M", Some(1_000_000_000)),
            ("1G", Some(1_000_000_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("1e-3", Some(1)),
            ("1e-999", Some(1)),
            ("0e999", Some(0)),
            ("1E", Some(1_000_000_000_000_000_000_000_u128)),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("lots", None),
            ("1mm", None),
            ("1e", None),
            ("1e99999", None),
            ("1e30", None),
            ("1 ", None),
        ]
        .map(|(text, milli)| (text, milli.and_then(|milli: u128| u64::try_from(milli).ok())))
        {
            assert_eq!(parse_cpu(text), milli, "{text:?}");
        }
    }

    #[test]
    fn thousandths_of_memory_may_exceed_64_bits() {
        assert_eq!(parse_milli("17Pi"), Some(17 * 1024_i128.pow(5) * 1000));
        assert_eq!(parse_milli("8Ei"), Some(8 * 1024_i128.pow(6) * 1000));
        assert_eq!(parse_cpu("17Pi"), None);
    }

    #[test]
    fn any_quantity_is_parsed_in_thousandths() {
        for (text, milli) in [
            ("1.5Gi", Some(1_610_612_736_000)),
            ("64Mi", Some(67_108_864_000)),
            ("-1.5", Some(-1500)),
            ("-1n", Some(-1)),
            ("1e30", Some(10_i128.pow(33))),
            ("1e40", None),
            ("1e-2147483648", Some(1)),
            ("1e2147483647", None),
            ("170141183460469231731687303715884105727", None),
            ("1Xi", None),
            ("abc", None),
        ] {
            assert_eq!(parse_milli(text), milli, "{text:?}");
        }
    }

    #[test]
    fn whole_cores_are_written_without_suffix() {
        assert_eq!(format_cpu(2000), "2");
        assert_eq!(format_cpu(100), "100m");
    }
}
