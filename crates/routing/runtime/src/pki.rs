//! Certificates that nearhop makes itself: an authority, and what it signs.
//!
//! Keys are ECDSA P-256: made and used in well under a millisecond. Not here: files. Who keeps a
//! key, and where, the caller knows.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

pub use rcgen::Error as PkiError;

/// The common name of the certificate that an API server shows to kubelets, as kubeadm has it.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// The group of [`KUBELET_CLIENT`]: a kubelet's authorizer lets it do everything.
const MASTERS: &str = "system:masters";

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate, perhaps with those of intermediate authorities.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    /// Without the key: what is debugged ends up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Whom a server's certificate names.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    /// Its common name.
    pub common_name: &'a str,
    /// The DNS names by which it is reached.
    pub names: Vec<String>,
    /// The addresses by which it is reached.
    pub addresses: Vec<IpAddr>,
}

/// A certificate authority.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one.
    ///
    /// # Errors
    /// The library refuses the name.
    pub fn create(name: &str) -> Result<Self, PkiError> {
        Self::of_key(name, &new_key()?)
    }

    /// The one that has this private key, as PEM.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn of_key(name: &str, key: &str) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key)?;
        let certificate = authority_parameters(name).self_signed(&key)?.pem();
        // The certificate is made of these parameters, so they can sign in its place.
        Ok(Self { certificate, issuer: Issuer::new(authority_parameters(name), key) })
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Makes a certificate for a server.
    ///
    /// # Errors
    /// A name is none.
    pub fn issue_server(&self, subject: &Subject<'_>) -> Result<Pair, PkiError> {
        let key = KeyPair::generate()?;
        let certificate = server_parameters(subject)?.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// Makes a certificate for a client of the group `system:masters`.
    ///
    /// # Errors
    /// The library refuses the name.
    pub fn issue_client(&self, common_name: &str) -> Result<Pair, PkiError> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, MASTERS);
        parameters.distinguished_name.push(DnType::CommonName, common_name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

/// Makes a private key, as PEM.
///
/// # Errors
/// The system gives no random numbers.
pub fn new_key() -> Result<String, PkiError> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Makes a certificate for a server that nobody but itself vouches for.
///
/// # Errors
/// A name is none.
pub fn self_signed(subject: &Subject<'_>) -> Result<Pair, PkiError> {
    let key = KeyPair::generate()?;
    let certificate = server_parameters(subject)?.self_signed(&key)?.pem();
    Ok(Pair { certificate, key: key.serialize_pem() })
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
