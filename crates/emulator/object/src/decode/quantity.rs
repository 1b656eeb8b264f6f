//! Quantities (`100m`, `1.5Gi`, `1e3`) as Kubernetes reads and writes them.
//!
//! Digits are kept as text: quantities may be longer than any integer type, and what is needed
//! (strip zeros, shift, round up, double) is easy on digits. No arithmetic between quantities.

use std::borrow::Cow;
use std::cmp::Ordering;

/// What is wrong with a quantity, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not look like a quantity.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// Its number is none.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// Its unit is none.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `12e6`
    Exponent,
    /// `12Mi`
    Binary,
    /// `12M`
    Decimal,
}

const DECIMAL: [(&str, i64); 10] = [
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
const BINARY: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The smallest step: one nano.
const NANO: i64 = -9;
/// The most a binary quantity can be.
const MOST_BINARY: &str = "9223372036854775807";

/// A quantity cut into its parts; the digits are ASCII digits without leading zeros.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Whether there was a digit at all, or no more than one point.
    numeric: bool,
}

/// The canonical text of a quantity, or the text itself where Kubernetes leaves it alone.
///
/// # Errors
/// What is wrong with the text.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let parts = split(text)?;
    let (format, exponent) = interpret(parts.suffix).ok_or(QuantityError::Suffix)?;
    if fits_fast(&parts, format, exponent) {
        if kept_as_it_is(&parts, format, exponent) {
            return Ok(Cow::Borrowed(text));
        }
    } else if !parts.numeric {
        return Err(QuantityError::Numeric);
    }
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let scale = -i64::try_from(parts.fraction.len()).map_err(|_| QuantityError::Numeric)?;
    let amount = match format {
        Format::Binary => {
            let (digits, scale) = (double(digits.into_bytes(), exponent), scale);
            cap(round_up_to_nano(Amount::new(digits, scale)))
        }
        _ => round_up_to_nano(Amount::new(digits.into_bytes(), scale + exponent)),
    };
    Ok(Cow::Owned(write(&amount, format, parts.negative)))
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let unpadded = rest.trim_start_matches('0');
    let (whole, after) = unpadded.split_at(count_digits(unpadded));
    let (fraction, suffix) = match after.strip_prefix('.') {
        Some(after) => after.split_at(count_digits(after)),
        None => ("", after),
    };
    let had_digits = unpadded.len() < rest.len() || !whole.is_empty() || !fraction.is_empty();
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let power = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    if !power.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    Ok(Parts { negative, whole, fraction, suffix, numeric: had_digits })
}

fn count_digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn interpret(suffix: &str) -> Option<(Format, i64)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Format::Decimal, *exponent));
    }
    if let Some((_, exponent)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((Format::Binary, i64::from(*exponent)));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Go cuts it to 32 bits.
    Some((Format::Exponent, i64::from(exponent as i32)))
}

/// Whether Go reads it into one 64-bit integer. Only then it may keep the text.
fn fits_fast(parts: &Parts<'_>, format: Format, exponent: i64) -> bool {
    let length = parts.whole.len() + parts.fraction.len();
    match format {
        Format::Binary => {
            let lost = parts.whole.len() as f32 + (exponent as f32 * 3.0 / 10.0).trunc() + 1.0;
            parts.fraction.is_empty() && lost <= 15.0
        }
        _ => length <= 18 && exponent - parts.fraction.len() as i64 >= NANO,
    }
}

/// Whether Go takes the text for canonical without looking closely.
fn kept_as_it_is(parts: &Parts<'_>, format: Format, exponent: i64) -> bool {
    let last = parts.fraction.bytes().last().or_else(|| parts.whole.bytes().last());
    match format {
        // The number is no multiple of eight.
        Format::Binary => parts.whole.parse::<i64>().is_ok_and(|value| value & 7 != 0),
        _ => {
            let shifted_scale = exponent - parts.fraction.len() as i64;
            let digits = parts.whole.bytes().rev();
            let zeros =
                parts.fraction.bytes().rev().chain(digits).take_while(|b| *b == b'0').count();
            last.is_some() && shifted_scale % 3 == 0 && zeros < 3 && !parts.whole.starts_with('0')
        }
    }
}

/// Digits (most significant first, no leading zeros, empty for zero) times ten to a power.
struct Amount {
    digits: Vec<u8>,
    exponent: i64,
}

impl Amount {
    fn new(digits: Vec<u8>, exponent: i64) -> Self {
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        Self { digits: digits.get(zeros..).unwrap_or_default().to_vec(), exponent }
    }

    fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Without zeros at the end.
    fn stripped(&self) -> (&[u8], i64) {
        let zeros = self.digits.iter().rev().take_while(|digit| **digit == b'0').count();
        let kept = self.digits.len() - zeros;
        (self.digits.get(..kept).unwrap_or_default(), self.exponent + zeros as i64)
    }

    /// As a whole number, if it is one of a sensible size.
    fn whole(&self) -> Option<i128> {
        let (digits, exponent) = self.stripped();
        let power = 10_i128.checked_pow(u32::try_from(exponent).ok()?)?;
        std::str::from_utf8(digits).ok()?.parse::<i128>().ok()?.checked_mul(power)
    }

    /// Compared with a whole number that is not zero.
    fn cmp_whole(&self, other: i64) -> Ordering {
        let magnitude = self.digits.len() as i64 + self.exponent;
        let other_text = other.to_string();
        let by_length = magnitude.cmp(&(other_text.len() as i64));
        by_length.then_with(|| {
            let (digits, _) = self.stripped();
            digits.cmp(other_text.trim_end_matches('0').as_bytes())
        })
    }
}

/// Times two to a power that is a multiple of ten.
fn double(mut digits: Vec<u8>, exponent: i64) -> Vec<u8> {
    for _ in 0..exponent / 10 {
        let mut carry = 0_u32;
        for digit in digits.iter_mut().rev() {
            let product = u32::from(*digit - b'0') * 1024 + carry;
            *digit = b'0' + (product % 10) as u8;
            carry = product / 10;
        }
        let mut head = carry.to_string().into_bytes();
        head.append(&mut digits);
        digits = head;
    }
    digits
}

/// Whoever wants something gets something: fractions of a nano count as one.
fn round_up_to_nano(mut amount: Amount) -> Amount {
    if amount.is_zero() || amount.exponent >= NANO {
        return amount;
    }
    let excess = usize::try_from(NANO - amount.exponent).unwrap_or(usize::MAX);
    let kept = amount.digits.len().saturating_sub(excess);
    let rest = amount.digits.split_off(kept);
    if rest.iter().any(|digit| *digit != b'0') {
        increment(&mut amount.digits);
    }
    amount.exponent = NANO;
    amount
}

fn increment(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
    digits.insert(0, b'1');
}

fn cap(amount: Amount) -> Amount {
    if amount.cmp_whole(i64::MAX) == Ordering::Greater {
        Amount::new(MOST_BINARY.as_bytes().to_vec(), 0)
    } else {
        amount
    }
}

fn write(amount: &Amount, format: Format, negative: bool) -> String {
    if amount.is_zero() {
        return "0".to_owned();
    }
    let sign = if negative { "-" } else { "" };
    if format == Format::Binary
        && amount.cmp_whole(1024) != Ordering::Less
        && let Some(mut whole) = amount.whole()
    {
        let mut suffix = "";
        for (name, _) in BINARY {
            if whole % 1024 != 0 {
                break;
            }
            whole /= 1024;
            suffix = name;
        }
        return format!("{sign}{whole}{suffix}");
    }
    let (digits, mut exponent) = amount.stripped();
    let mut number = String::from_utf8_lossy(digits).into_owned();
    while exponent.rem_euclid(3) != 0 {
        number.push('0');
        exponent -= 1;
    }
    match format {
        Format::Exponent if exponent != 0 => format!("{sign}{number}e{exponent}"),
        Format::Exponent => format!("{sign}{number}"),
        // A binary quantity that is small or no whole number is written as a decimal one.
        Format::Binary | Format::Decimal => {
            // Beyond the largest unit the reference forgets the power, too.
            let suffix =
                DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(s, _)| s);
            format!("{sign}{number}{suffix}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Ki", "1Mi"),
            ("1Mi", "1Mi"),
            ("8Gi", "8Gi"),
            ("1536Mi", "1536Mi"),
            ("2048Mi", "2Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("1.1Ki", "1126400m"),
            ("100", "100"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("110000", "110k"),
            ("100m", "100m"),
            ("1500m", "1500m"),
            ("2500m", "2500m"),
            ("1.5", "1500m"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("12E", "12E"),
            ("-1000m", "-1"),
            ("0.0000000001", "1n"),
            ("1.0000000001", "1000000001n"),
            ("9999Ei", "9223372036854775807"),
            ("1Ei", "1Ei"),
            (".5", "500m"),
            ("5.", "5."),
            ("1.500", "1.500"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("16384k", "16384k"),
            ("20000k", "20M"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for (text, problem) in [
            ("", QuantityError::Format),
            ("abc", QuantityError::Format),
            ("true", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("1Gb", QuantityError::Format),
            ("1Mm", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
        ] {
            assert_eq!(canonical(text), Err(problem), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_settles_at_once(text in "[-+]?[0-9.]{0,25}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,11}") {
            if let Ok(once) = canonical(&text) {
                let twice = canonical(&once);
                proptest::prop_assert!(twice.is_ok());
            }
        }
    }
}
