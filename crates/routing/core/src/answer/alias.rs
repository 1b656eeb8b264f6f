//! Services of type ExternalName: aliases, which are followed inside this server's zones.

use std::net::IpAddr;

use super::question::{AskedName, Question, RecordType};
use super::record::{Answer, Data, DomainName, Outcome, Record};
use super::resolve::{Found, resolve as resolve_name};
use super::{Asking, zone};
use crate::model::Service;

/// Maximum number of aliases in a chain; a longer chain is ignored.
const MOST_ALIASES: usize = 11;

/// Whether the upstream server for the alias target has replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// It has replied, possibly with a negative answer or an error.
    Replied,
    /// It has not replied.
    Silent,
}

impl Answer<'_> {
    /// The final form of an answer with [`Outcome::Alias`]. With any reply: NOERROR, the alias, and
    /// the records of the reply, which the caller adds; the client can continue from the alias.
    /// Without a reply: NODATA without the alias, because its target is unknown.
    #[must_use]
    pub fn settle_alias(self, upstream: Upstream) -> Self {
        match upstream {
            Upstream::Replied => Self { outcome: Outcome::Data, authority: None, ..self },
            Upstream::Silent => Self { outcome: Outcome::NoData, answers: Vec::new(), ..self },
        }
    }
}

/// Resolves the name of an ExternalName Service.
pub(super) fn resolve<'a>(
    asking: &Asking<'a>,
    service: &'a Service,
    name: &AskedName,
    record_type: RecordType,
) -> Found<'a> {
    let Some(target) = target_of(service) else { return Found::Missing };
    let alias = alias_record(asking, DomainName::Asked, target);
    match record_type {
        RecordType::Cname => Found::answers(vec![alias]),
        RecordType::A | RecordType::Aaaa => follow(asking, alias, target, name, record_type),
        _ => Found::Empty,
    }
}

/// The target name. The API also accepts an IP address, which is not a valid alias.
fn target_of(service: &Service) -> Option<&str> {
    let target = service.external_name.as_deref()?;
    target.parse::<IpAddr>().is_err().then_some(target)
}

fn alias_record<'a>(asking: &Asking<'a>, owner: DomainName<'a>, target: &'a str) -> Record<'a> {
    let data = Data::Cname(DomainName::Absolute(target));
    Record { owner, ttl: asking.config.ttl, data }
}

/// Follows aliases until there are addresses, or until the target is outside this server's zones.
fn follow<'a>(
    asking: &Asking<'a>,
    first: Record<'a>,
    mut target: &'a str,
    asked: &AskedName,
    record_type: RecordType,
) -> Found<'a> {
    let mut answers = vec![first];
    // The limit also ends a loop.
    while answers.len() <= MOST_ALIASES {
        let Ok(name) = AskedName::parse(target) else { return Found::Empty };
        let Some((zone, outside)) = zone::find(asking.config, &name) else {
            return Found::Elsewhere { answers, target };
        };
        // An alias of itself, or of a name below itself, has no target.
        if name.below(asked).is_some() {
            return Found::Empty;
        }
        let owner = DomainName::Absolute(target);
        let mut question = Question { name, record_type: RecordType::Cname };
        if let Found::Records { answers: found, .. } =
            resolve_name(asking, zone, &question, outside)
            && let [Record { data: Data::Cname(DomainName::Absolute(next)), .. }] = found[..]
        {
            answers.push(alias_record(asking, owner, next));
            target = next;
            continue;
        }
        question.record_type = record_type;
        return match resolve_name(asking, zone, &question, outside) {
            Found::Records { answers: found, choice, .. } => {
                answers.extend(found.into_iter().map(|record| Record { owner, ..record }));
                Found::Records { answers, additional: Vec::new(), choice }
            }
            Found::OutOfReach(choice) => Found::OutOfReach(choice),
            _ => Found::Empty,
        };
    }
    Found::Empty
}
