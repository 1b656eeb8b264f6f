//! Random choices: those of the caller, or every possible one in turn.

/// The source of random numbers for `numgen`.
pub(super) trait Dice {
    /// A number below the modulus.
    fn throw(&mut self, modulus: u32) -> u32;

    /// Whether an event with probability `part / whole` happens.
    fn happens(&mut self, part: u32, whole: u32) -> bool;
}

/// Random numbers of the caller.
pub(super) struct Thrown<'a>(pub(super) &'a mut dyn FnMut(u32) -> u32);

impl Dice for Thrown<'_> {
    fn throw(&mut self, modulus: u32) -> u32 {
        (self.0)(modulus)
    }

    fn happens(&mut self, part: u32, whole: u32) -> bool {
        (self.0)(whole) % whole < part
    }
}

/// The choices of one walk, and how to advance to the next walk.
#[derive(Default)]
pub(super) struct Script {
    throws: Vec<Throw>,
    /// How many choices this walk has used.
    at: usize,
}

#[derive(Clone, Copy)]
enum Throw {
    /// Tries every value in turn.
    Number { modulus: u32, value: u32 },
    /// Tries that the event happens, then that it does not, instead of a billion values.
    Chance { part: u32, whole: u32, happens: bool },
}

/// The probability of a walk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Odds {
    /// The number of equally likely walks.
    ways: u64,
    /// The product of all probabilities, as bits: for comparison, not for calculation.
    chances: u64,
}

impl Odds {
    /// The probability of `count` walks like this one.
    pub(super) fn times(self, count: u64) -> f64 {
        f64::from_bits(self.chances) * count as f64 / self.ways as f64
    }
}

impl Script {
    /// The probability of the last walk.
    pub(super) fn odds(&self) -> Odds {
        let (mut ways, mut chances) = (1, 1.0);
        for throw in &self.throws {
            match *throw {
                Throw::Number { modulus, .. } => ways *= u64::from(modulus),
                Throw::Chance { part, whole, happens } => {
                    let part = if happens { part } else { whole - part };
                    chances *= f64::from(part) / f64::from(whole);
                }
            }
        }
        Odds { ways, chances: chances.to_bits() }
    }

    /// Advances to the next walk; returns false after the last one.
    pub(super) fn next(&mut self) -> bool {
        self.at = 0;
        while let Some(last) = self.throws.last_mut() {
            match last {
                Throw::Number { modulus, value } if *value + 1 < *modulus => {
                    *value += 1;
                    return true;
                }
                Throw::Chance { part, whole, happens } if *happens && *part < *whole => {
                    *happens = false;
                    return true;
                }
                Throw::Number { .. } | Throw::Chance { .. } => {
                    self.throws.pop();
                }
            }
        }
        false
    }

    fn take(&mut self, new: Throw) -> Throw {
        if self.at == self.throws.len() {
            self.throws.push(new);
        }
        self.at += 1;
        self.throws[self.at - 1]
    }
}

impl Dice for Script {
    fn throw(&mut self, modulus: u32) -> u32 {
        match self.take(Throw::Number { modulus, value: 0 }) {
            Throw::Number { value, .. } => value,
            Throw::Chance { .. } => unreachable!("the same rules throw the same dice"),
        }
    }

    fn happens(&mut self, part: u32, whole: u32) -> bool {
        match self.take(Throw::Chance { part, whole, happens: part > 0 }) {
            Throw::Chance { happens, .. } => happens,
            Throw::Number { .. } => unreachable!("the same rules throw the same dice"),
        }
    }
}
