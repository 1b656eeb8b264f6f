//! The requests of a Service that do not count, as sentences. The condition Accepted and the
//! warnings of the embedded API server use the same sentences.

use super::{Ignored, IntentDecision, PassedOver, Spelling};
use crate::key::{Name, ServiceKey};
use crate::object::ObjectRef;
use crate::problem::{Problem, Subject, quote};

/// The field of the setting of Balanced.
pub(super) const MAX_OVERLOAD: &str = "metadata.annotations[nearhop.dev/max-overload]";

impl IntentDecision {
    /// One sentence for each request of the Service that does not count, in order of precedence.
    /// A default is named if the Service would use it. A request that means the same as the one
    /// that decides is not ignored.
    pub fn ignored(&self, service: &ServiceKey) -> Vec<String> {
        let requests = self.passed_over.iter().filter_map(|ignored| {
            self.describe(ignored, &service.namespace).map(|text| (ignored.spelling, text))
        });
        let named = requests.filter(|(spelling, _)| *spelling <= Spelling::NamespaceDefault);
        let limit = self.problems.iter().filter(|problem| *problem.field == *MAX_OVERLOAD);
        let limit =
            limit.map(|problem| format!("{}: {}; {}", problem.field, problem.cause, problem.cure));
        named.map(|(_, text)| text).chain(limit).collect()
    }

    fn describe(&self, ignored: &Ignored, namespace: &Name) -> Option<String> {
        let Ignored { spelling, value, why } = ignored;
        let origin = spelling.origin(namespace);
        match why {
            PassedOver::Repeated(_) => None,
            PassedOver::Overruled(_) if spelling.is_default() => None,
            PassedOver::Overruled(by) => Some(format!(
                "{origin}: {} is ignored, because {} takes precedence",
                quote(value),
                by.origin(namespace)
            )),
            PassedOver::GateOff(gate) => Some(format!(
                "{origin}: {} is ignored, because the feature gate {gate} is off",
                quote(value)
            )),
            PassedOver::Refused => {
                let problem = self.problem_of(*spelling)?;
                Some(format!("{origin}: {}; {}", problem.cause, problem.cure))
            }
        }
    }

    /// The problem of the value in this place.
    pub(crate) fn problem_of(&self, spelling: Spelling) -> Option<&Problem> {
        // The annotations of a Service and of its Namespace have the same path.
        let of_namespace =
            |problem: &Problem| matches!(problem.subject, Subject::Object(ObjectRef::Namespace(_)));
        self.problems.iter().find(|problem| {
            *problem.field == *spelling.field()
                && of_namespace(problem) == (spelling == Spelling::NamespaceDefault)
        })
    }
}
