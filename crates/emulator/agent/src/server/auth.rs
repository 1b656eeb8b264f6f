//! Authorizes clients by the certificate of the TLS handshake. The TLS library has already verified
//! the certificate's CA, its dates and the client's key.

use http::StatusCode;
use nearhop_runtime::pki::{self, Subject};
use nearhop_runtime::tls::{common_names, server_config};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

use super::{RequestError, ServeError};
use crate::options::{Clients, Options};

/// Whether the requests of a connection are served.
#[derive(Debug)]
pub(super) enum Client {
    Allowed,
    /// All paths but `/healthz` return this error.
    Refused(RequestError),
}

/// The TLS configuration of the server.
pub(super) fn tls(options: &Options) -> Result<ServerConfig, ServeError> {
    let own = || {
        pki::self_signed(&Subject {
            common_name: &options.node,
            names: vec![options.node.clone()],
            addresses: options.addresses.clone(),
        })
    };
    let pair = options.serving.clone().map_or_else(own, Ok)?;
    let authorities = options.clients.as_ref().map(|clients| clients.authorities.as_str());
    Ok(server_config(&pair, authorities)?)
}

/// Authorizes a connection by its certificates, the client's own first.
pub(super) fn authorize(clients: Option<&Clients>, shown: Option<&[CertificateDer<'_>]>) -> Client {
    let Some(clients) = clients else {
        return Client::Refused(unauthorized(
            "this agent has no client CA, so it rejects all requests. Cure: start it with --client-ca-file, \
             the CA of the API server's --kubelet-client-certificate",
        ));
    };
    let Some(certificate) = shown.and_then(<[_]>::first) else {
        return Client::Refused(unauthorized(
            "logs and exec need a client certificate of the agent's --client-ca-file. Cure: use the API \
             server, and start it with --kubelet-client-certificate and --kubelet-client-key",
        ));
    };
    let names = common_names(certificate);
    if names.iter().any(|name| clients.names.contains(name)) {
        return Client::Allowed;
    }
    let allowed = clients.names.join(", ");
    let message = format!(
        "the client certificate names {names:?}; only {allowed} may request logs and exec. Cure: add \
         it to the agent's --client-allowed-names"
    );
    Client::Refused(RequestError { code: StatusCode::FORBIDDEN, reason: "Forbidden", message })
}

fn unauthorized(message: &str) -> RequestError {
    let (code, reason) = (StatusCode::UNAUTHORIZED, "Unauthorized");
    RequestError { code, reason, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use nearhop_runtime::pki::{Authority, KUBELET_CLIENT};
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    fn result_of(client: &Client) -> (u16, &str) {
        match client {
            Client::Allowed => (200, ""),
            Client::Refused(refusal) => (refusal.code.as_u16(), &refusal.message),
        }
    }

    #[test]
    fn without_a_client_ca_all_requests_are_rejected() {
        let refused = authorize(None, None);
        let (code, message) = result_of(&refused);
        assert_eq!(code, 401);
        assert!(message.contains("--client-ca-file"), "{message}");
    }

    #[test]
    fn the_certificates_name_is_authorized() {
        let authority = Authority::create("test").unwrap();
        let (authorities, names) =
            (authority.certificate().to_owned(), vec![KUBELET_CLIENT.to_owned()]);
        let clients = Clients { authorities, names };
        let shown = |name: &str| {
            let pair = authority.issue_client(name).unwrap();
            [CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()]
        };
        let known = authorize(Some(&clients), Some(&shown(KUBELET_CLIENT)));
        assert_eq!(result_of(&known).0, 200);
        let other = authorize(Some(&clients), Some(&shown("system:node:n2")));
        let (code, message) = result_of(&other);
        assert_eq!(code, 403);
        assert!(
            message.contains("system:node:n2") && message.contains(KUBELET_CLIENT),
            "{message}"
        );
        let anonymous = authorize(Some(&clients), None);
        assert_eq!(result_of(&anonymous).0, 401);
    }
}
