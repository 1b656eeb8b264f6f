//! Mutual TLS between an API server and node agents, from certificates and keys as PEM.
//!
//! A node agent requests a client certificate but does not require one: a client without a
//! certificate gets an HTTP reply that says what is missing. The TLS handshake fails for a
//! certificate of another CA, and for one that has expired.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use webpki::EndEntityCert;

use crate::pki::Pair;

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum TlsError {
    #[error("{flag} {}: {why}", .path.display())]
    File { flag: &'static str, path: PathBuf, why: io::Error },
    #[error("{0} contains no certificate. Cure: give a PEM file with BEGIN CERTIFICATE")]
    NoCertificate(&'static str),
    #[error("{0} contains no private key. Cure: give a PEM file with BEGIN PRIVATE KEY")]
    NoKey(&'static str),
    #[error("{what}: {why}")]
    Refused { what: &'static str, why: String },
}

/// Which server certificates a client accepts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Certificates of these CAs, given as PEM, for the address that the client connects to.
    Authorities(String),
    /// Any certificate, like kube-apiserver without `--kubelet-certificate-authority`.
    AnyServer,
}

/// Reads a file that a flag names.
pub fn read_file(flag: &'static str, path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|why| TlsError::File { flag, path: path.to_owned(), why })
}

/// The TLS configuration of a server with this certificate, which accepts client certificates of
/// these CAs; without CAs it accepts none.
pub fn server_config(
    pair: &Pair,
    client_authorities: Option<&str>,
) -> Result<ServerConfig, TlsError> {
    let what = "the serving certificate";
    let (chain, key) = read_pair(pair, what)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(refused(what))?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(text) => {
            let what = "the CA of clients";
            let roots = Arc::new(read_roots(text, what)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .allow_unauthenticated()
                .build()
                .map_err(refused(what))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(chain, key).map_err(refused(what))
}

/// The TLS configuration of a client with this certificate, or with none.
pub fn client_config(pair: Option<&Pair>, trust: &Trust) -> Result<ClientConfig, TlsError> {
    let what = "the client certificate";
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(refused(what))?;
    let builder = match trust {
        Trust::Authorities(text) => {
            builder.with_root_certificates(read_roots(text, "the CA of servers")?)
        }
        Trust::AnyServer => {
            let verifier = Arc::new(AcceptAnyCertificate(provider()));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let Some(pair) = pair else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = read_pair(pair, what)?;
    builder.with_client_auth_cert(chain, key).map_err(refused(what))
}

/// The common names in a certificate's subject, unchanged.
pub fn common_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let mut names = Vec::new();
    // RDNSequence ::= SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value ANY } (RFC 5280,
    // 4.1.2.4); `subject` returns it without the outer SEQUENCE.
    for set in elements(certificate.subject()) {
        for pair in elements(set.1) {
            if let [(OBJECT_IDENTIFIER, COMMON_NAME), (UTF8_STRING | PRINTABLE_STRING, name)] =
                elements(pair.1).collect::<Vec<_>>()[..]
            {
                names.extend(String::from_utf8(name.to_vec()));
            }
        }
    }
    names
}

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
/// The object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The elements of a DER value, each with its tag and its content. Stops at the first malformed
/// one.
fn elements(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&tag, after) = rest.split_first()?;
        let (&first, after) = after.split_first()?;
        let (length, after) = match first {
            ..=0x7f => (usize::from(first), after),
            0x81 => after.split_first().map(|(one, after)| (usize::from(*one), after))?,
            // A name has at most 255 octets.
            _ => return None,
        };
        let (content, after) = after.split_at_checked(length)?;
        rest = after;
        Some((tag, content))
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn refused<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> TlsError {
    move |why| TlsError::Refused { what, why: why.to_string() }
}

type Chain = Vec<CertificateDer<'static>>;

fn read_pair(pair: &Pair, what: &'static str) -> Result<(Chain, PrivateKeyDer<'static>), TlsError> {
    let chain = read_certificates(&pair.certificate, what)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
    Ok((chain, key.map_err(|_| TlsError::NoKey(what))?))
}

fn read_certificates(text: &str, what: &'static str) -> Result<Chain, TlsError> {
    let chain: Result<Chain, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or(TlsError::NoCertificate(what))
}

fn read_roots(text: &str, what: &'static str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(text, what)? {
        roots.add(certificate).map_err(refused(what))?;
    }
    Ok(roots)
}

/// Accepts any certificate, but still checks that the server has its private key.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Authority, KUBELET_CLIENT, Subject};

    fn certificate(pair: &Pair) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("the certificate is PEM")
    }

    #[test]
    fn the_common_name_of_a_certificate_is_read() {
        let authority = Authority::create("test").expect("the CA is created");
        let long = "x".repeat(200);
        for name in [KUBELET_CLIENT, "zürich", &long] {
            let pair = authority.issue_client(name).expect("the certificate is issued");
            assert_eq!(common_names(&certificate(&pair)), [name]);
        }
        let server = Subject { common_name: "n1", ..Subject::default() };
        let pair = authority.issue_server(&server).expect("the certificate is issued");
        assert_eq!(common_names(&certificate(&pair)), ["n1"]);
    }

    #[test]
    fn invalid_der_has_no_elements() {
        assert_eq!(elements(&[0x31, 5, 1]).count(), 0);
        assert_eq!(elements(&[0x31, 0x82, 1, 0]).count(), 0);
        assert_eq!(elements(&[0x31, 1, 7, 0x30]).collect::<Vec<_>>(), [(0x31, &[7][..])]);
    }

    #[test]
    fn errors_name_the_invalid_part() {
        let authority = Authority::create("test").expect("the CA is created");
        let pair = authority.issue_client("c").expect("the certificate is issued");
        let said =
            server_config(&pair, Some("nothing")).expect_err("the CA is invalid").to_string();
        assert!(said.contains("CA of clients") && said.contains("Cure"), "{said}");
        let keyless = Pair { key: String::new(), ..pair };
        let said = client_config(Some(&keyless), &Trust::AnyServer)
            .expect_err("the key is missing")
            .to_string();
        assert!(said.contains("private key"), "{said}");
    }
}
