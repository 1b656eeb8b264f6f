//! `dns_*`: DNS questions, answered by the answer code of core.

use nearhop_core::answer::{
    Answer, Asking, Config, Index, Outcome, Question, Spelling, Upstream, answer,
};
use nearhop_core::locate::Located;
use serde_json::{Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::dns::{Row, upstream_is_cut};
use crate::read::{CaseError, Field};

const SET: Rule = Rule::Bag(&Rule::Exact);

/// An answer as cases write it.
struct Shown {
    outcome: &'static str,
    rcode: &'static str,
    answer: Vec<String>,
    authority: Vec<String>,
    additional: Vec<String>,
    truncated: bool,
}

/// Answers one question with the cluster of the file.
pub(super) fn ask(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let row = Row::read(&case.file, &case.row)?;
    let index = Index::build(&row.world);
    let asker = Located::unknown();
    let asking = Asking {
        world: &row.world,
        index: &index,
        config: &row.config,
        serial: row.serial,
        synced: row.synced,
        asker: &asker,
        seed: None,
        most: usize::MAX,
    };
    let answered = answer(&asking, &row.question);
    let upstream = match answered.outcome {
        Outcome::Alias(target) => {
            let fixture = case.file.get("fixture")?;
            Some(Replied::find(&fixture, target, &row.record_type)?)
        }
        _ => None,
    };
    let mut shown = show(&row.config, &row.question, answered, upstream);
    shown.truncated |= upstream_is_cut(&case.file, &case.row)?;
    compare(case, check, &shown)
}

/// The reply of the recursive resolver for the target of an alias.
enum Replied {
    With { answer: Vec<String>, truncated: bool },
    Nothing,
}

impl Replied {
    fn find(fixture: &Field<'_>, target: &str, record_type: &str) -> Result<Self, CaseError> {
        let dot = if target.ends_with('.') { "" } else { "." };
        let key = format!("{}{dot} {record_type}", target.to_lowercase());
        let reply = fixture.get("upstream")?.get(&key)?;
        match reply.value() {
            Value::Null => Err(reply.error("the resolver must not be asked for this")),
            Value::String(_) => Ok(Self::Nothing),
            _ => {
                let lines = reply.get("answer")?.names()?;
                let answer = lines.iter().map(ToString::to_string).collect();
                Ok(Self::With { answer, truncated: reply.get("tc")?.flag()? })
            }
        }
    }
}

fn show(
    config: &Config,
    question: &Question,
    answered: Answer<'_>,
    upstream: Option<Replied>,
) -> Shown {
    let (answered, more, truncated) = match upstream {
        None => (answered, Vec::new(), false),
        Some(Replied::Nothing) => (answered.settle_alias(Upstream::Silent), Vec::new(), false),
        Some(Replied::With { answer, truncated }) => {
            (answered.settle_alias(Upstream::Replied), answer, truncated)
        }
    };
    let spelling = Spelling::of(&answered, &question.name, config);
    let text = |records: &[_]| records.iter().map(|record| spelling.record(record)).collect();
    let mut answer: Vec<String> = text(&answered.answers);
    answer.extend(more);
    let (outcome, rcode) = match answered.outcome {
        Outcome::Data | Outcome::Alias(_) => ("answer", "NOERROR"),
        Outcome::NoData => ("nodata", "NOERROR"),
        Outcome::NameError => ("nxdomain", "NXDOMAIN"),
        Outcome::Unsynced => ("servfail", "SERVFAIL"),
        Outcome::Refused => ("refused", "REFUSED"),
        Outcome::PassedOn => ("passed_on", ""),
    };
    Shown {
        outcome,
        rcode,
        answer,
        authority: answered.authority.iter().map(|record| spelling.record(record)).collect(),
        additional: text(&answered.additional),
        truncated,
    }
}

/// Sections are sets; a section that a row does not have is empty.
fn compare(case: &Case<'_>, check: &mut Check<'_>, shown: &Shown) -> Result<(), CaseError> {
    let sections = [
        ("answer", &shown.answer),
        ("authority", &shown.authority),
        ("additional", &shown.additional),
    ];
    check.fields(&case.row, |key| match key {
        "outcome" => Some((Rule::Exact, json!(shown.outcome))),
        "rcode" => Some((Rule::Exact, json!(shown.rcode))),
        "tc" => Some((Rule::Exact, json!(shown.truncated))),
        _ => {
            let (_, records) = sections.iter().find(|(name, _)| *name == key)?;
            Some((SET, json!(records)))
        }
    })?;
    let left_out = |name: &str| {
        let expected = |holder: &str| Ok(case.row.get(holder)?.get(name)?.is_null());
        Ok::<bool, CaseError>(expected("expect")? && expected("nearhop")?)
    };
    for (name, records) in sections {
        if left_out(name)? {
            check.implied(&format!("expect.{name}"), &json!([]), &json!(records));
        }
    }
    let aliases: Vec<bool> = shown.answer.iter().map(|line| line.contains(" IN CNAME ")).collect();
    check.implied(
        "expect.answer (aliases first)",
        &json!(true),
        &json!(aliases.is_sorted_by(|a, b| a >= b)),
    );
    Ok(())
}
