//! Who the server is and whom it lets in: a CA made at the first start, a certificate for the
//! addresses it listens on, two bearer tokens, and the kubeconfig that carries them.
//!
//! With a data directory all of it is kept there, so that a kubeconfig outlives a restart.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::Rng as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused it.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// A kept file cannot be read or written.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// Why.
        why: io::Error,
    },
    /// A kept file is not what it should be.
    #[error(
        "{0} is damaged; remove it, and a new one is made (clients then need the new kubeconfig)"
    )]
    Damaged(String),
}

/// What a bearer token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Admin,
    /// Look, and ask what it may do.
    ReadOnly,
    /// A ServiceAccount with a token of its own: see which resources there are, and ask what it may
    /// do. Nobody gives it more.
    ServiceAccount,
    /// No token: version and health only.
    Anonymous,
}

impl Role {
    /// The user's name in messages and reviews.
    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Admin => "nearhop-admin",
            Self::ReadOnly => "nearhop-read-only",
            Self::ServiceAccount => "system:serviceaccount",
            Self::Anonymous => "system:anonymous",
        }
    }

    /// The user's groups.
    pub(crate) fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Admin => &["system:masters", "system:authenticated"],
            Self::ReadOnly => &["system:authenticated"],
            Self::ServiceAccount => &["system:serviceaccounts", "system:authenticated"],
            Self::Anonymous => &["system:unauthenticated"],
        }
    }

    /// Whether it may use a verb of the API.
    pub(crate) fn may(self, verb: &str) -> bool {
        match self {
            Self::Admin => true,
            Self::ReadOnly => matches!(verb, "get" | "list" | "watch"),
            Self::ServiceAccount | Self::Anonymous => false,
        }
    }
}

/// The server's keys and tokens.
pub(crate) struct Identity {
    ca: String,
    certificate: String,
    key: String,
    pub(crate) admin_token: String,
    pub(crate) read_only_token: String,
}

impl Identity {
    /// Makes an identity, or takes the one kept in a directory.
    pub(crate) fn load(keep: Option<&Path>, listen: SocketAddr) -> Result<Self, IdentityError> {
        let kept = |name: &str, make: &dyn Fn() -> Result<String, IdentityError>| match keep {
            None => make(),
            Some(directory) => keep_file(&directory.join(name), make),
        };
        let ca_key = kept("ca.key", &|| Ok(KeyPair::generate()?.serialize_pem()))?;
        let ca_pair = parse_key(&ca_key, "ca.key")?;
        let ca = kept("ca.crt", &|| Ok(ca_parameters().self_signed(&ca_pair)?.pem()))?;
        // The certificate is made of these parameters, so they can sign in its place.
        let issuer = Issuer::new(ca_parameters(), ca_pair);
        let pair = KeyPair::generate()?;
        let certificate = server_parameters(listen.ip())?.signed_by(&pair, &issuer)?.pem();
        Ok(Self {
            certificate,
            key: pair.serialize_pem(),
            ca,
            admin_token: kept("admin.token", &|| Ok(new_token()))?,
            read_only_token: kept("read-only.token", &|| Ok(new_token()))?,
        })
    }

    /// The certificate of the CA, as PEM.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca
    }

    /// Whose token this is. `None`: nobody's.
    pub(crate) fn role(&self, authorization: Option<&str>) -> Option<Role> {
        let Some(header) = authorization else { return Some(Role::Anonymous) };
        let token = header.strip_prefix("Bearer ")?.trim();
        if same(token, &self.admin_token) {
            Some(Role::Admin)
        } else {
            same(token, &self.read_only_token).then_some(Role::ReadOnly)
        }
    }

    pub(crate) fn tls(&self) -> Result<ServerConfig, IdentityError> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let damaged = |_| IdentityError::Damaged("the server's certificate".to_owned());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(damaged)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain.map_err(damaged)?, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// A kubeconfig with a context for each token.
    pub(crate) fn kubeconfig(&self, server: &str) -> String {
        let ca = STANDARD.encode(&self.ca);
        let (admin, reader) = (&self.admin_token, &self.read_only_token);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: nearhop\n\
             clusters:\n- name: nearhop\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
             users:\n- name: admin\n  user:\n    token: {admin}\n- name: read-only\n  user:\n    token: {reader}\n\
             contexts:\n- name: nearhop\n  context: {{cluster: nearhop, user: admin, namespace: default}}\n\
             - name: read-only\n  context: {{cluster: nearhop, user: read-only, namespace: default}}\n"
        )
    }
}

/// Writes a file that only its owner may read. It is there whole or not at all.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // Left behind by a process of the same number that was killed at the wrong moment.
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// The content of a file, made and written if it is not there.
pub(crate) fn keep_file(
    path: &Path,
    make: &dyn Fn() -> Result<String, IdentityError>,
) -> Result<String, IdentityError> {
    let at = |why| IdentityError::File { path: path.display().to_string(), why };
    match fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => {
            Err(IdentityError::Damaged(path.display().to_string()))
        }
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = make()?;
            write_private(path, &text).map_err(at)?;
            Ok(text)
        }
        Err(error) => Err(at(error)),
    }
}

fn parse_key(pem: &str, name: &str) -> Result<KeyPair, IdentityError> {
    KeyPair::from_pem(pem).map_err(|_| IdentityError::Damaged(name.to_owned()))
}

fn ca_parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "nearhop");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

fn server_parameters(listen: IpAddr) -> Result<CertificateParams, rcgen::Error> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut parameters = CertificateParams::new(names.map(str::to_owned))?;
    parameters.distinguished_name.push(DnType::CommonName, "nearhop apiserver");
    let loopback = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    for address in loopback.into_iter().chain([listen]) {
        parameters.subject_alt_names.push(SanType::IpAddress(address));
    }
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(parameters)
}

fn new_token() -> String {
    let bytes: [u8; 32] = rand::rng().random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares without telling by its duration where the first difference is.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}
