//! Certificates that nearhop creates: a certificate authority (CA), and the certificates that it
//! signs.
//!
//! Keys are ECDSA P-256, which are fast to create and to use. Files are not here: the caller stores
//! keys and certificates.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

pub use rcgen::Error as PkiError;

/// The common name of the client certificate that an API server presents to kubelets, as in
/// kubeadm.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// The group of [`KUBELET_CLIENT`]: a kubelet's authorizer allows it everything.
const MASTERS: &str = "system:masters";

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate, perhaps followed by intermediate CA certificates.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Pair {
    fn new(certificate: &Certificate, key: &KeyPair) -> Self {
        Self { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl std::fmt::Debug for Pair {
    /// Omits the private key, because debug output ends up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The names in a server's certificate.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    /// The common name.
    pub common_name: &'a str,
    /// The DNS names of the server.
    pub names: Vec<String>,
    /// The IP addresses of the server.
    pub addresses: Vec<IpAddr>,
}

/// A certificate authority (CA).
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates a CA with a new key.
    pub fn create(name: &str) -> Result<Self, PkiError> {
        Self::of_key(name, &new_key()?)
    }

    /// Creates a CA with this private key, as PEM.
    pub fn of_key(name: &str, key: &str) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key)?;
        let certificate = authority_parameters(name).self_signed(&key)?.pem();
        // The CA certificate is made from the same parameters, so the issuer can use them instead
        // of it.
        Ok(Self { certificate, issuer: Issuer::new(authority_parameters(name), key) })
    }

    /// The CA certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a certificate for a server.
    pub fn issue_server(&self, subject: &Subject<'_>) -> Result<Pair, PkiError> {
        let key = KeyPair::generate()?;
        Ok(Pair::new(&server_parameters(subject)?.signed_by(&key, &self.issuer)?, &key))
    }

    /// Issues a certificate for a client in the group `system:masters`.
    pub fn issue_client(&self, common_name: &str) -> Result<Pair, PkiError> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, MASTERS);
        parameters.distinguished_name.push(DnType::CommonName, common_name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(Pair::new(&parameters.signed_by(&key, &self.issuer)?, &key))
    }
}

/// Creates a private key, as PEM.
pub fn new_key() -> Result<String, PkiError> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Creates a self-signed certificate for a server.
pub fn self_signed(subject: &Subject<'_>) -> Result<Pair, PkiError> {
    let key = KeyPair::generate()?;
    Ok(Pair::new(&server_parameters(subject)?.self_signed(&key)?, &key))
}

fn authority_parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

fn server_parameters(subject: &Subject<'_>) -> Result<CertificateParams, PkiError> {
    let mut parameters = CertificateParams::new(subject.names.clone())?;
    parameters.distinguished_name.push(DnType::CommonName, subject.common_name);
    let addresses = subject.addresses.iter().copied().map(SanType::IpAddress);
    parameters.subject_alt_names.extend(addresses);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(parameters)
}
