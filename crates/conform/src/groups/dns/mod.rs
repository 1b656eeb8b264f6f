//! `dns_*`: questions to the cluster's DNS, answered by core's own answer code.

mod fixture;

use nearhop_core::answer::{
    Answer, AskedName, Asking, Index, Outcome, Question, RecordType, Spelling, Synced, Upstream,
    answer,
};
use nearhop_core::locate::Located;
use serde_json::{Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
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

/// Asks one question of the file's cluster.
pub(super) fn ask(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let fixture = case.file.get("fixture")?.required()?;
    let config = fixture::Config::read(&fixture.get("config")?, &case.row.get("config")?)?;
    let world = fixture::world(&fixture, &config)?;
    let settings = config.answers(&fixture)?;
    let index = Index::build(&world);
    let query = case.row.get("query")?.required()?;
    let question = read_question(&query)?;
    let asker = Located::unknown();
    let asking = Asking {
        world: &world,
        index: &index,
        config: &settings,
        serial: fixture.get("serial")?.count_or(0, u32::MAX as usize)? as u32,
        synced: if config.flag_or("synced", true)? { Synced::Yes } else { Synced::No },
        asker: &asker,
        seed: None,
    };
    let answered = answer(&asking, &question);
    let upstream = match answered.outcome {
        Outcome::Alias(target) => Some(Replied::find(&fixture, target, &query)?),
        _ => None,
    };
    let mut shown = show(&settings, &question, answered, upstream);
    shown.truncated |= config.flag_or("upstream_tc", false)?;
    compare(case, check, &shown)
}

fn read_question(query: &Field<'_>) -> Result<Question, CaseError> {
    let name = query.get("name")?;
    let asked = AskedName::parse(name.text()?).map_err(|error| name.error(error.to_string()))?;
    let field = query.get("type")?;
    let record_type = match field.text()? {
        "A" => RecordType::A,
        "AAAA" => RecordType::Aaaa,
        "SRV" => RecordType::Srv,
        "PTR" => RecordType::Ptr,
        "CNAME" => RecordType::Cname,
        "TXT" => RecordType::Txt,
        "SOA" => RecordType::Soa,
        "NS" => RecordType::Ns,
        "AXFR" | "IXFR" => RecordType::Transfer,
        "MX" | "HINFO" | "ANY" | "CAA" | "HTTPS" | "SVCB" | "NAPTR" | "DNSKEY" | "DS" | "NSEC"
        | "RRSIG" | "SPF" | "URI" | "TLSA" => RecordType::Other,
        _ => return Err(field.error("is not a record type that cases use")),
    };
    Ok(Question { name: asked, record_type })
}

/// What the recursive side said about an alias's target.
enum Replied {
    With { answer: Vec<String>, truncated: bool },
    Nothing,
}

impl Replied {
    fn find(fixture: &Field<'_>, target: &str, query: &Field<'_>) -> Result<Self, CaseError> {
        let dot = if target.ends_with('.') { "" } else { "." };
        let key = format!("{}{dot} {}", target.to_lowercase(), query.get("type")?.text()?);
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
    config: &nearhop_core::answer::Config,
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

/// Sections are sets; one that a row leaves out is empty.
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
