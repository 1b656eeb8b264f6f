//! Parsers for texts in case files: port expressions and list positions.

/// Computes an expression such as `8080 + (i % 5)` for one `i`.
pub(crate) fn evaluate(text: &str, i: i64) -> Option<i64> {
    let mut parser = Parser { rest: text.trim_start(), i, depth: 0 };
    let value = parser.sum()?;
    parser.rest.is_empty().then_some(value)
}

type Operator = (char, fn(i64, i64) -> Option<i64>);

struct Parser<'a> {
    rest: &'a str,
    i: i64,
    depth: u32,
}

impl Parser<'_> {
    fn take(&mut self, symbol: char) -> bool {
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<i64> {
        self.chain(Self::product, &[('+', i64::checked_add), ('-', i64::checked_sub)])
    }

    fn product(&mut self) -> Option<i64> {
        let operators: [Operator; 3] =
            [('*', i64::checked_mul), ('/', i64::checked_div), ('%', i64::checked_rem)];
        self.chain(Self::operand, &operators)
    }

    /// Operands with operators of one precedence between them.
    fn chain(
        &mut self,
        operand: fn(&mut Self) -> Option<i64>,
        operators: &[Operator],
    ) -> Option<i64> {
        let mut value = operand(self)?;
        while let Some((_, apply)) = operators.iter().find(|(symbol, _)| self.take(*symbol)) {
            value = apply(value, operand(self)?)?;
        }
        Some(value)
    }

    fn operand(&mut self) -> Option<i64> {
        /// Maximum nesting of a port expression.
        const DEEPEST: u32 = 32;
        if self.take('i') {
            return Some(self.i);
        }
        if self.take('(') {
            self.depth += 1;
            let value = if self.depth > DEEPEST { None } else { self.sum() };
            self.depth -= 1;
            return value.filter(|_| self.take(')'));
        }
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        digits.parse().ok()
    }
}

/// Reads the first list of numbers in a text: `0,10,20,...,90` continues by the last step.
pub(crate) fn positions(text: &str, most: usize) -> Option<Vec<usize>> {
    let list = &text[text.find(|c: char| c.is_ascii_digit())?..];
    let end = list.find(|c: char| !(c.is_ascii_digit() || ", .".contains(c))).unwrap_or(list.len());
    let mut positions: Vec<usize> = Vec::new();
    let mut series = false;
    for item in list[..end].split(',').map(str::trim).filter(|item| !item.is_empty()) {
        if item.chars().all(|c| c == '.') {
            series = true;
            continue;
        }
        let last: usize = item.parse().ok().filter(|last| *last < most)?;
        if std::mem::take(&mut series) {
            continue_to(&mut positions, last)?;
        } else {
            positions.push(last);
        }
    }
    (!positions.is_empty() && !series).then_some(positions)
}

fn continue_to(positions: &mut Vec<usize>, last: usize) -> Option<()> {
    let [.., before, from] = positions[..] else { return None };
    let step = from.checked_sub(before).filter(|step| *step > 0)?;
    positions.extend((from + step..=last).step_by(step));
    (positions.last() == Some(&last)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_evaluated() {
        let cases = [
            ("8080 + (i % 5)", Some(8082)),
            ("8080 + i", Some(8087)),
            ("8080", Some(8080)),
            ("2*(i-1)/3", Some(4)),
            ("i % 0", None),
            ("8080 +", None),
            ("8080 x", None),
            ("", None),
            ("9223372036854775807 + i", None),
        ];
        for (text, value) in cases {
            assert_eq!(evaluate(text, 7), value, "{text}");
        }
        assert_eq!(evaluate(&"(".repeat(100_000), 0), None);
    }

    #[test]
    fn list_positions_are_parsed() {
        let text = "pods at list position 0,10,20,...,90 become unready after that";
        assert_eq!(positions(text, 100), Some((0..=90).step_by(10).collect()));
        assert_eq!(positions("pods at positions 3, 5 become unready", 6), Some(vec![3, 5]));
        assert_eq!(positions("position 1,2,...,9,20", 21).map(|list| list.len()), Some(10));
        for broken in
            ["pods", "position", "position 1,...,9", "position 1,3,...,8", "position 1,2,..."]
        {
            assert_eq!(positions(broken, 100), None, "{broken}");
        }
        assert_eq!(positions("0,80", 100), Some(vec![0, 80]));
        assert_eq!(positions("position 7", 7), None);
    }
}
