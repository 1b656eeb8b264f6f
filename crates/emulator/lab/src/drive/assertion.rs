//! Conditions on a report, for scripts: `METRIC OPERATOR VALUE`. Pure.
//!
//! ```text
//!   cross-zone<=1%   failed==0   p99<=20ms   share(zone-a->zone-b)<5%
//! ```

use std::fmt;
use std::str::FromStr;

use super::question::{From as Source, Question};
use super::report::{Judged, Report};

/// Why text is not an assertion: what was expected at which character, from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: expected {expected}")]
pub struct AssertionError {
    position: usize,
    expected: String,
}

/// A condition on a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    /// As it was written.
    text: String,
    metric: Metric,
    operator: Operator,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Metric {
    Connections,
    Answered,
    Failed,
    CrossZone,
    CrossNode,
    Rate,
    P50,
    P90,
    P99,
    Max,
    /// Of the answers to clients of a place, the share from another place.
    Share(String, String),
}

const METRICS: [(&str, Metric); 10] = [
    ("connections", Metric::Connections),
    ("answered", Metric::Answered),
    ("failed", Metric::Failed),
    ("cross-zone", Metric::CrossZone),
    ("cross-node", Metric::CrossNode),
    ("rate", Metric::Rate),
    ("p50", Metric::P50),
    ("p90", Metric::P90),
    ("p99", Metric::P99),
    ("max", Metric::Max),
];

/// The metrics, for help and errors.
pub const METRIC_NAMES: &str = "connections, answered, failed, cross-zone, cross-node, rate, p50, \
                                p90, p99, max or share(FROM->TO)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    AtMost,
    Below,
    Equal,
    NotEqual,
    AtLeast,
    Above,
}

/// Longer ones first: `<=` begins with `<`.
const OPERATORS: [(&str, Operator); 6] = [
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<", Operator::Below),
    (">", Operator::Above),
];

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Count(u64),
    Percent(f64),
    Micros(f64),
    PerSecond(f64),
}

impl Metric {
    /// Reads the value that this metric is compared with.
    fn parse_value(&self, text: &str) -> Result<Value, &'static str> {
        let number = |text: &str| text.trim_end().parse::<f64>().ok().filter(|n| n.is_finite());
        let percent = text.strip_suffix('%').and_then(number).map(Value::Percent);
        let count = text.parse().ok().map(Value::Count);
        let (value, expected) = match self {
            Self::Connections => (count, "a whole number such as 1000"),
            Self::Answered | Self::Failed => {
                (count.or(percent), "a whole number such as 0, or a percentage such as 0.1%")
            }
            Self::CrossZone | Self::CrossNode | Self::Share(..) => {
                (percent, "a percentage such as 1%")
            }
            Self::Rate => {
                let plain = text.strip_suffix("/s").unwrap_or(text);
                (number(plain).map(Value::PerSecond), "connections per second such as 100/s")
            }
            Self::P50 | Self::P90 | Self::P99 | Self::Max => {
                let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
                let micros = units.into_iter().find_map(|(unit, micros)| {
                    Some(Value::Micros(number(text.strip_suffix(unit)?)? * micros))
                });
                (micros, "a time such as 20ms")
            }
        };
        value.filter(|value| value.number() >= 0.0).ok_or(expected)
    }

    /// The measured value in the unit of `like`, or why there is none.
    fn measure(&self, report: &Report, like: Value) -> Result<Value, String> {
        let counted = |count: u64| match like {
            Value::Percent(_) if report.connections == 0 => Err("n/a: no connection".to_owned()),
            Value::Percent(_) => {
                Ok(Value::Percent(count as f64 / report.connections as f64 * 100.0))
            }
            _ => Ok(Value::Count(count)),
        };
        let unknown = |place: &str| format!("n/a: no answer between known {place}");
        let percent = |share: f64| Value::Percent(share * 100.0);
        let latency = |of: fn(&super::tally::Percentiles) -> u32| {
            let latency = report.latency.as_ref().ok_or("n/a: no answer")?;
            Ok(Value::Micros(of(latency).into()))
        };
        match self {
            Self::Connections => counted(report.connections),
            Self::Answered => counted(report.answered),
            Self::Failed => counted(report.failed),
            Self::CrossZone => report.cross_zone.map(percent).ok_or_else(|| unknown("zones")),
            Self::CrossNode => report.cross_node.map(percent).ok_or_else(|| unknown("nodes")),
            Self::Rate => Ok(Value::PerSecond(report.rate.reached)),
            Self::P50 => latency(|latency| latency.p50_us),
            Self::P90 => latency(|latency| latency.p90_us),
            Self::P99 => latency(|latency| latency.p99_us),
            Self::Max => latency(|latency| latency.max_us),
            Self::Share(from, to) => share(report, from, to).map(Value::Percent),
        }
    }
}

/// Both are zones, or both are nodes.
fn share(report: &Report, from: &str, to: &str) -> Result<f64, String> {
    let matrix = [&report.matrix, &report.node_matrix].into_iter().find(|m| m.contains_key(from));
    let row = matrix.and_then(|matrix| matrix.get(from));
    let sum: u64 = row.map_or(0, |row| row.values().sum());
    let part = row.and_then(|row| row.get(to)).copied().unwrap_or_default();
    match sum {
        0 => Err(format!("n/a: no answer to a client in {from}")),
        sum => Ok(part as f64 / sum as f64 * 100.0),
    }
}

impl Value {
    fn number(self) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Percent(number) | Self::Micros(number) | Self::PerSecond(number) => number,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            // Enough digits to see why a condition on a small share does not hold.
            Self::Percent(number) => write!(f, "{}%", (number * 1e3).round() / 1e3),
            Self::Micros(number) => write!(f, "{:.2}ms", number / 1e3),
            Self::PerSecond(number) => write!(f, "{number:.1}/s"),
        }
    }
}

impl Operator {
    fn holds(self, measured: f64, value: f64) -> bool {
        match self {
            Self::AtMost => measured <= value,
            Self::Below => measured < value,
            Self::Equal => measured == value,
            Self::NotEqual => measured != value,
            Self::AtLeast => measured >= value,
            Self::Above => measured > value,
        }
    }
}

impl Assertion {
    /// Whether the report fulfils the condition. A condition on a value that was not measured does
    /// not hold.
    pub fn judge(&self, report: &Report) -> Judged {
        let measured = self.metric.measure(report, self.value);
        let holds = |measured: &Value| self.operator.holds(measured.number(), self.value.number());
        Judged {
            assertion: self.text.clone(),
            held: measured.as_ref().is_ok_and(holds),
            measured: measured.map_or_else(|why| why, |value| value.to_string()),
        }
    }

    /// Whether it is about failed connections. Without such a condition none may fail.
    pub fn is_about_failures(&self) -> bool {
        matches!(self.metric, Metric::Answered | Metric::Failed)
    }

    /// Refuses a condition on a value that this drive cannot measure: it would never hold, and the
    /// reader would look for the fault in the cluster.
    pub fn check(&self, question: &Question, zones: &[&str], nodes: &[&str]) -> Result<(), String> {
        let external = question.from == Source::External;
        match &self.metric {
            Metric::CrossZone if external => Err(format!(
                "{self}: an external client has no zone to leave. Cure: 'share(external->ZONE)', or \
                 another --from"
            )),
            Metric::CrossNode if external => {
                Err(format!("{self}: an external client is on no node. Cure: another --from"))
            }
            Metric::Share(from, to) => {
                let known = |name: &str, names: &[&str]| names.contains(&name);
                let outside = external && from == super::origin::EXTERNAL;
                let zones_fit = (known(from, zones) || outside) && known(to, zones);
                let nodes_fit = (known(from, nodes) || outside) && known(to, nodes);
                if zones_fit || nodes_fit {
                    return Ok(());
                }
                Err(format!(
                    "{self}: FROM and TO must be two zones ({}) or two nodes ({}); FROM can be \
                     external with --from external",
                    zones.join(", "),
                    nodes.join(", ")
                ))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--assert '{}'", self.text)
    }
}

impl FromStr for Assertion {
    type Err = AssertionError;

    fn from_str(text: &str) -> Result<Self, AssertionError> {
        let fail = |rest: &str, expected: &str| AssertionError {
            position: text.chars().count() - rest.chars().count() + 1,
            expected: expected.to_owned(),
        };
        let (metric, rest) = read_metric(text.trim_start(), &fail)?;
        let rest = rest.trim_start();
        let found = OPERATORS
            .iter()
            .find_map(|(sign, operator)| Some((*operator, rest.strip_prefix(sign)?)));
        let (operator, rest) = found.ok_or_else(|| fail(rest, "one of <=, <, ==, !=, >=, >"))?;
        let rest = rest.trim_start();
        let value = metric.parse_value(rest.trim_end()).map_err(|expected| fail(rest, expected))?;
        Ok(Self { text: text.trim().to_owned(), metric, operator, value })
    }
}

fn read_metric<'a>(
    text: &'a str,
    fail: &impl Fn(&str, &str) -> AssertionError,
) -> Result<(Metric, &'a str), AssertionError> {
    if let Some(inner) = text.strip_prefix("share(") {
        let (from, rest) = inner.split_once("->").ok_or_else(|| fail(inner, "FROM->TO)"))?;
        let (to, rest) = rest.split_once(')').ok_or_else(|| fail(rest, "TO and `)`"))?;
        let [from, to] = [from.trim(), to.trim()];
        if from.is_empty() || to.is_empty() {
            return Err(fail(inner, "a zone or a node on both sides of ->"));
        }
        return Ok((Metric::Share(from.to_owned(), to.to_owned()), rest));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let found = METRICS.iter().find(|(known, _)| *known == name);
    let (_, metric) = found.ok_or_else(|| fail(text, METRIC_NAMES))?;
    Ok((metric.clone(), rest))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{question, sample};
    use super::*;

    fn judge(text: &str) -> (bool, String) {
        let judged = text.parse::<Assertion>().unwrap().judge(&sample());
        assert_eq!(judged.assertion, text.trim());
        (judged.held, judged.measured)
    }

    fn refusal(text: &str) -> String {
        text.parse::<Assertion>().unwrap_err().to_string()
    }

    #[test]
    fn conditions_are_judged_by_the_measured_value() {
        let yes = |measured: &str| (true, measured.to_owned());
        let no = |measured: &str| (false, measured.to_owned());
        assert_eq!(judge("cross-zone<=12.5%"), yes("12.5%"));
        assert_eq!(judge("cross-zone<12.5%"), no("12.5%"));
        assert_eq!(judge(" cross-node > 40 % "), yes("62.5%"));
        assert_eq!(judge("failed==0"), no("5"));
        assert_eq!(judge("failed != 0"), yes("5"));
        assert_eq!(judge("failed<=33.34%"), yes("33.333%"));
        assert_eq!(judge("answered>=10"), yes("10"));
        assert_eq!(judge("connections==15"), yes("15"));
        assert_eq!(judge("p99<=4us"), yes("0.00ms"));
        assert_eq!(judge("max>1ms"), no("0.00ms"));
        assert_eq!(judge("share(a->b)==25%"), yes("25%"));
        assert_eq!(judge("share(n1->n2)<20%"), no("25%"));
        assert_eq!(judge("share(c->a)<20%"), no("n/a: no answer to a client in c"));
        assert_eq!(judge("rate>=0/s"), yes("0.0/s"));
    }

    #[test]
    fn a_condition_without_a_measurement_does_not_hold() {
        let mut report = sample();
        (report.cross_zone, report.latency) = (None, None);
        (report.connections, report.answered, report.failed) = (0, 0, 0);
        for text in ["cross-zone<=100%", "p99<=1s", "failed<=100%"] {
            let judged = text.parse::<Assertion>().unwrap().judge(&report);
            assert!(!judged.held && judged.measured.starts_with("n/a"), "{text}: {judged:?}");
        }
    }

    #[test]
    fn errors_name_the_position_and_what_is_expected() {
        for (text, wanted) in [
            ("", "at character 1: expected connections, answered"),
            ("latency<1ms", "at character 1: expected connections"),
            ("cross-zone", "at character 11: expected one of <="),
            ("cross-zone=1%", "at character 11: expected one of <="),
            ("cross-zone<~1%", "at character 12: expected a percentage such as 1%"),
            ("cross-zone<=0.1", "at character 13: expected a percentage"),
            ("cross-zone<=NaN%", "at character 13: expected a percentage"),
            ("failed==-1%", "at character 9: expected a whole number"),
            ("failed==1.5", "at character 9: expected a whole number"),
            ("p99<=20", "at character 6: expected a time such as 20ms"),
            ("p99<=20ms and more", "at character 6: expected a time"),
            ("share(zone-a)<1%", "at character 7: expected FROM->TO)"),
            ("share(a->b<1%", "at character 10: expected TO and `)`"),
            ("share(->b)<1%", "at character 7: expected a zone or a node"),
            ("rate>=fast", "at character 7: expected connections per second"),
        ] {
            let refused = refusal(text);
            assert!(refused.starts_with(wanted), "{text:?}: {refused}");
        }
    }

    #[test]
    fn conditions_that_a_drive_cannot_measure_are_refused() {
        let check = |text: &str, from: Source| {
            let assertion: Assertion = text.parse().unwrap();
            assertion.check(&question(from), &["a", "b"], &["n1", "n2"])
        };
        let outside = check("cross-zone<=1%", Source::External).unwrap_err();
        assert!(outside.contains("an external client has no zone to leave"), "{outside}");
        assert!(check("cross-node==0%", Source::External).is_err());
        assert_eq!(check("share(external->a)<50%", Source::External), Ok(()));
        assert_eq!(check("share(a->b)<50%", Source::Everywhere), Ok(()));
        assert_eq!(check("share(n1->n2)<50%", Source::Everywhere), Ok(()));
        let mixed = check("share(a->n2)<50%", Source::Everywhere).unwrap_err();
        assert!(mixed.contains("two zones (a, b) or two nodes (n1, n2)"), "{mixed}");
        assert!(check("share(external->a)<50%", Source::Everywhere).is_err());
    }

    #[test]
    fn every_metric_is_listed() {
        for (name, metric) in METRICS {
            assert!(METRIC_NAMES.contains(name), "{name}");
            let about = matches!(metric, Metric::Answered | Metric::Failed);
            let value = [" 1", "1%", "1ms"]
                .into_iter()
                .find_map(|v| format!("{name}=={v}").parse::<Assertion>().ok());
            assert_eq!(value.unwrap().is_about_failures(), about, "{name}");
        }
    }
}
