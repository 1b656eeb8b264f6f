//! Who may ask a node: the certificate that a client showed in the handshake decides.
//!
//! The library has verified it by then: its authority, its dates, and that the client has its key.

use http::StatusCode;
use nearhop_runtime::pki::{self, Subject};
use nearhop_runtime::tls::{common_names, server_config};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

use super::{RequestError, ServeError};
use crate::options::{Clients, Options};

/// Whether a connection's requests are answered.
#[derive(Debug)]
pub(super) enum Client {
    /// They are.
    Allowed,
    /// All but `/healthz` get this.
    Refused(RequestError),
}

/// The agent's side of the handshake.
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

/// Looks at the certificates of a connection, the client's own first.
pub(super) fn authorize(clients: Option<&Clients>, shown: Option<&[CertificateDer<'_>]>) -> Client {
    let Some(clients) = clients else {
        return Client::Refused(unauthorized(
            "this agent cannot tell who asks, so it answers nobody. Cure: start it with --client-ca-file, \
             the CA of the API server's --kubelet-client-certificate",
        ));
    };
    let Some(certificate) = shown.and_then(<[_]>::first) else {
        return Client::Refused(unauthorized(
            "logs and exec need a client certificate of the agent's --client-ca-file. Cure: ask the API \
             server, and start it with --kubelet-client-certificate and --kubelet-client-key",
        ));
    };
    let names = common_names(certificate);
    if names.iter().any(|name| clients.names.contains(name)) {
        return Client::Allowed;
    }
    let allowed = clients.names.join(", ");
    let message = format!(
        "the client certificate is of {names:?}, and only {allowed} may ask for logs and exec. Cure: name \
         it in the agent's --client-allowed-names"
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

    fn said(client: &Client) -> (u16, &str) {
        match client {
            Client::Allowed => (200, ""),
            Client::Refused(refusal) => (refusal.code.as_u16(), &refusal.message),
        }
    }

    #[test]
    fn without_a_client_ca_nobody_is_answered_and_the_flag_is_named() {
        let refused = authorize(None, None);
        let (code, message) = said(&refused);
        assert_eq!(code, 401);
        assert!(message.contains("--client-ca-file"), "{message}");
    }

    #[test]
    fn the_name_of_a_certificate_decides() {
        let authority = Authority::create("test").unwrap();
        let clients = Clients::api_servers(authority.certificate().to_owned());
        let shown = |name: &str| {
            let pair = authority.issue_client(name).unwrap();
            [CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()]
        };
        let known = authorize(Some(&clients), Some(&shown(KUBELET_CLIENT)));
        assert_eq!(said(&known).0, 200);
        let other = authorize(Some(&clients), Some(&shown("system:node:n2")));
        let (code, message) = said(&other);
        assert_eq!(code, 403);
        assert!(
            message.contains("system:node:n2") && message.contains(KUBELET_CLIENT),
            "{message}"
        );
        let nobody = authorize(Some(&clients), None);
        assert_eq!(said(&nobody).0, 401);
    }
}
