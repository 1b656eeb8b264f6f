//! Explains a failed request for the Lease, and names the fix. Pure.

use super::LeaseOptions;
use crate::error_chain;

/// The failure as a text that changes only when the failure does.
pub(super) fn explain(error: &kube::Error, options: &LeaseOptions) -> String {
    let LeaseOptions { namespace, name, .. } = options;
    let kube::Error::Api(status) = error else {
        return format!("the request failed: {}", error_chain(error));
    };
    let message = &status.message;
    match status.code {
        401 => format!("the API server rejects the credentials ({message}); renew the credentials"),
        403 => format!(
            "RBAC does not allow it ({message}); grant get, create and update on \
             leases.coordination.k8s.io in namespace {namespace:?}, for instance by a Role with a \
             RoleBinding"
        ),
        // A missing Lease is created, so this 404 means that the namespace is missing.
        404 => format!(
            "namespace {namespace:?} does not exist, or the API server has no Leases ({message}); \
             create the namespace or choose another for Lease {name:?}"
        ),
        422 => format!(
            "the API server rejects the Lease as invalid ({message}); correct the Lease's name"
        ),
        code => format!("the API server answered {code}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn explained(code: u16) -> String {
        let status = Status { code, message: "why".to_owned(), ..Status::default() };
        let options = LeaseOptions::new("east", "nearhop", "host");
        explain(&kube::Error::Api(Box::new(status)), &options)
    }

    #[test]
    fn explanation_names_the_fix() {
        assert!(explained(403).contains("grant get, create and update"));
        assert!(explained(403).contains("\"east\""));
        assert!(explained(404).contains("create the namespace"));
        assert!(explained(401).contains("credentials"));
        assert_eq!(explained(500), "the API server answered 500: why");
    }
}
