//! Numbers as in Go: integers are `int64`, all others `float64`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Number, Value};

use crate::patch::go_float;

/// A number of an object.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Num {
    Int(i64),
    Float(f64),
}

impl Num {
    pub(super) fn of(number: &Number) -> Self {
        match number.as_i64() {
            Some(int) => Self::Int(int),
            None => Self::Float(number.as_f64().unwrap_or_default()),
        }
    }

    /// The number of a keyword, in the type of the number to compare it with.
    pub(super) fn like(self, bound: f64) -> Self {
        match self {
            // The conversion saturates, which is correct: no number exceeds such a bound.
            Self::Int(_) if bound.fract() == 0.0 => Self::Int(bound as i64),
            _ => Self::Float(bound),
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }

    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        }
    }

    /// Whether it is an integer multiple of a positive factor.
    pub(super) fn is_multiple_of(self, factor: Self) -> bool {
        match (self, factor) {
            (Self::Int(a), Self::Int(b)) => b > 0 && a % b == 0,
            (a, b) => is_whole(if b.as_f64() < 1.0 {
                1.0 / b.as_f64() * a.as_f64()
            } else {
                a.as_f64() / b.as_f64()
            }),
        }
    }
}

/// Whether a float counts as an integer: JSON integers are exact below 2^53.
pub(super) fn is_whole(float: f64) -> bool {
    const MOST: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > MOST {
        return false;
    }
    let difference = (float - float.trunc()).abs();
    // The rounding tolerance of Go's library.
    difference == 0.0 || difference / float.abs() < 1e-9
}

impl fmt::Display for Num {
    /// Formats it like Go's `%v`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(int) => write!(f, "{int}"),
            Self::Float(float) => f.write_str(&go_float(*float)),
        }
    }
}

/// Whether two values are equal; numbers are compared by value.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || Num::of(a).as_f64() == Num::of(b).as_f64()
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_like_go() {
        for (float, text) in
            [(1.5, "1.5"), (1e21, "1e+21"), (1e-7, "1e-07"), (100.0, "100"), (0.0001, "0.0001")]
        {
            assert_eq!(Num::Float(float).to_string(), text);
        }
    }

    #[test]
    fn multiples_are_recognized() {
        let multiple = |a, b| Num::Float(a).is_multiple_of(Num::Float(b));
        assert!(multiple(0.3, 0.1) && multiple(4.5, 1.5) && !multiple(0.35, 0.1));
        assert!(
            Num::Int(9).is_multiple_of(Num::Int(3)) && !Num::Int(9).is_multiple_of(Num::Int(2))
        );
        assert!(!Num::Int(9).is_multiple_of(Num::Int(0)));
        assert!(Num::Int(i64::MIN).is_multiple_of(Num::Int(1)));
    }
}
