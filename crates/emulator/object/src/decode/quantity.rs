//! Quantities in the canonical form of Kubernetes.
//!
//! Digits are stored as text, because a quantity may exceed every integer type.

use std::borrow::Cow;
use std::cmp::Ordering;

use nearhop_core::quantity::{BINARY_SUFFIXES, DECIMAL_SUFFIXES, Parts, QuantityError, Unit};

/// The exponent of the smallest unit, nano.
const NANO: i64 = -9;
/// The largest quantity with a binary suffix.
const MOST_BINARY: &str = "9223372036854775807";

/// The canonical text of a quantity, or the text itself if Kubernetes does not change it.
///
/// # Errors
/// Why the text is not valid.
pub(super) fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    let parts = Parts::parse(text)?;
    if fits_fast(&parts) {
        if kept_as_it_is(&parts) {
            return Ok(Cow::Borrowed(text));
        }
    } else if !parts.has_digits {
        return Err(QuantityError::Numeric);
    }
    let digits = format!("{}{}", parts.whole, parts.fraction).into_bytes();
    let scale = -(parts.fraction.len() as i64);
    let amount = match parts.unit {
        Unit::Binary(power) => {
            cap(round_up_to_nano(Amount::new(multiply_by_1024(digits, power), scale)))
        }
        Unit::Decimal(power) | Unit::Exponent(power) => {
            round_up_to_nano(Amount::new(digits, scale + i64::from(power)))
        }
    };
    Ok(Cow::Owned(write(&amount, &parts)))
}

/// Whether Go parses it into one 64-bit integer. Only then it may keep the text.
fn fits_fast(parts: &Parts<'_>) -> bool {
    let (whole, fraction) = (parts.whole.len(), parts.fraction.len());
    match parts.unit {
        Unit::Binary(power) => fraction == 0 && whole + 3 * (power as usize) < 15,
        Unit::Decimal(power) | Unit::Exponent(power) => {
            whole + fraction <= 18 && i64::from(power) - fraction as i64 >= NANO
        }
    }
}

/// Whether Go's quick check treats the text as canonical.
fn kept_as_it_is(parts: &Parts<'_>) -> bool {
    match parts.unit {
        Unit::Binary(_) => parts.whole.parse::<i64>().is_ok_and(|value| value % 8 != 0),
        Unit::Decimal(power) | Unit::Exponent(power) => {
            let digits = parts.fraction.bytes().rev().chain(parts.whole.bytes().rev());
            let zeros = digits.take_while(|digit| *digit == b'0').count();
            let scale = i64::from(power) - parts.fraction.len() as i64;
            scale % 3 == 0 && zeros < 3 && !parts.whole.starts_with('0')
        }
    }
}

/// A decimal number: digits (most significant first, no leading zeros, empty for zero) and an
/// exponent.
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

    /// The same number without trailing zeros.
    fn stripped(&self) -> (&[u8], i64) {
        let zeros = self.digits.iter().rev().take_while(|digit| **digit == b'0').count();
        let kept = self.digits.len() - zeros;
        (self.digits.get(..kept).unwrap_or_default(), self.exponent + zeros as i64)
    }

    /// The value as an integer, if it is one and fits.
    fn whole(&self) -> Option<i128> {
        let (digits, exponent) = self.stripped();
        let power = 10_i128.checked_pow(u32::try_from(exponent).ok()?)?;
        std::str::from_utf8(digits).ok()?.parse::<i128>().ok()?.checked_mul(power)
    }

    /// Compares it with an integer that is not zero.
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

fn multiply_by_1024(mut digits: Vec<u8>, power: u32) -> Vec<u8> {
    for _ in 0..power {
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

/// Rounds fractions of a nano up to one nano.
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

fn write(amount: &Amount, parts: &Parts<'_>) -> String {
    if amount.is_zero() {
        return "0".to_owned();
    }
    let sign = if parts.negative { "-" } else { "" };
    if matches!(parts.unit, Unit::Binary(_))
        && amount.cmp_whole(1024) != Ordering::Less
        && let Some(mut whole) = amount.whole()
    {
        let mut suffix = "";
        for name in BINARY_SUFFIXES {
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
    let suffix = || DECIMAL_SUFFIXES.iter().find(|(_, power)| i64::from(*power) == exponent);
    match parts.unit {
        Unit::Exponent(_) if exponent != 0 => format!("{sign}{number}e{exponent}"),
        Unit::Exponent(_) => format!("{sign}{number}"),
        // Like Kubernetes, drops the exponent if it exceeds the largest suffix.
        Unit::Binary(_) | Unit::Decimal(_) => {
            format!("{sign}{number}{}", suffix().map_or("", |(name, _)| name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_form_matches_kubernetes() {
        let cases = "0=0 0Gi=0 1000m=1 0.5=500m 1024Ki=1Mi 1Mi=1Mi 8Gi=8Gi 1536Mi=1536Mi 2048Mi=2Gi \
            1.5Gi=1536Mi 0.5Gi=512Mi 0.5Ki=512 1.1Ki=1126400m 100=100 1000=1k 1500=1500 \
            110000=110k 100m=100m 1500m=1500m 2500m=2500m 1.5=1500m 1e3=1e3 1000e3=1e6 \
            12E=12E -1000m=-1 0.0000000001=1n 1.0000000001=1000000001n \
            9999Ei=9223372036854775807 1Ei=1Ei .5=500m 5.=5. 1.500=1.500 128974848=128974848 \
            129e6=129e6 16384k=16384k 20000k=20M";
        for case in cases.split_whitespace() {
            let (text, expected) = case.split_once('=').unwrap();
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
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
        fn canonical_form_is_a_quantity(text in "[-+]?[0-9.]{0,25}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,11}") {
            if let Ok(once) = canonical(&text) {
                let twice = canonical(&once);
                proptest::prop_assert!(twice.is_ok());
            }
        }
    }
}
