//! Kubernetes quantities, as thousandths: of a core, or of a byte.

/// Reads a Kubernetes quantity of CPU as thousandths of a core, rounded up. Negative ones, and
/// those beyond the range, are not read.
pub fn parse_cpu(text: &str) -> Option<u64> {
    u64::try_from(parse_milli(text)?).ok()
}

/// The same for any quantity: memory in bytes is larger than a number of cores can be.
pub fn parse_milli(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let mantissa: u128 = digits.parse().ok()?;
    let (exponent, multiplier) = read_suffix(suffix)?;
    let exponent = exponent + 3 - i32::try_from(fraction.len()).ok()?;
    scale(mantissa.checked_mul(multiplier)?, exponent)
}

/// A suffix as a power of ten and a multiplier.
fn read_suffix(suffix: &str) -> Option<(i32, u128)> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = decimal.iter().position(|known| *known == suffix) {
        return Some((i32::try_from(at).ok()? * 3 - 9, 1));
    }
    if let Some(at) = binary.iter().position(|known| *known == suffix) {
        return Some((0, 1024_u128.pow(u32::try_from(at).ok()? + 1)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-1000..=1000).contains(&exponent).then_some((exponent, 1))
}

/// `mantissa` times ten to the power of `exponent`, rounded up.
fn scale(mantissa: u128, exponent: i32) -> Option<u128> {
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    match (mantissa, power) {
        (0, _) => Some(0),
        (_, Some(power)) if exponent >= 0 => mantissa.checked_mul(power),
        (_, Some(power)) => Some(mantissa.div_ceil(power)),
        // Less than any thousandth, or more than any machine.
        (_, None) => (exponent < 0).then_some(1),
    }
}

/// Writes thousandths of a core as the API does: whole cores, else thousandths.
pub fn format_cpu(milli: u64) -> String {
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_read_as_a_quantity() {
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
    fn memory_is_larger_than_a_number_of_cores() {
        assert_eq!(parse_milli("17Pi"), Some(17 * 1024_u128.pow(5) * 1000));
        assert_eq!(parse_milli("8Ei"), Some(8 * 1024_u128.pow(6) * 1000));
        assert_eq!(parse_cpu("17Pi"), None);
    }

    #[test]
    fn cpu_is_written_in_whole_cores_where_it_can() {
        assert_eq!(format_cpu(2000), "2");
        assert_eq!(format_cpu(100), "100m");
    }
}
