//! The server's identity: a CA made at the first start, a serving certificate, a client certificate
//! for kubelets, two bearer tokens, and the kubeconfig with them.
//!
//! With a data directory they are stored there, so a kubeconfig stays valid after a restart.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nearhop_kinds::{Resource, Subresource, Verb};
use nearhop_runtime::interfaces;
use nearhop_runtime::pki::{self, Authority, KUBELET_CLIENT, Pair, PkiError, Subject};
use nearhop_runtime::tls::{TlsError, server_config};
use rand::Rng as _;
use rustls::ServerConfig;

use crate::KubeletOptions;
use crate::builtin::SECRETS;
use crate::kubelet::Kubelets;

/// Why the identity cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] PkiError),
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// A file has the wrong content.
    #[error("{0} is damaged; remove it to make a new one (clients then need the new kubeconfig)")]
    Damaged(String),
}

/// What a bearer token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Admin,
    /// Read everything but Secrets, and ask for its own rights.
    ReadOnly,
    /// The token of a ServiceAccount: read discovery, and ask for its own rights.
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

    pub(crate) fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Admin => &["system:masters", "system:authenticated"],
            Self::ReadOnly => &["system:authenticated"],
            Self::ServiceAccount => &["system:serviceaccounts", "system:authenticated"],
            Self::Anonymous => &["system:unauthenticated"],
        }
    }

    /// Whether it may use a verb on a resource, or on its subresource. `None` is a path without a
    /// resource, or a resource that is not served.
    ///
    /// The read-only role is like the ClusterRole `view`: a Secret can hold credentials.
    pub(crate) fn may(
        self,
        verb: Verb,
        resource: Option<&Resource>,
        subresource: Option<Subresource>,
    ) -> bool {
        let secret = || resource.is_some_and(|resource| resource.storage == SECRETS.storage);
        let runs = subresource.is_some_and(Subresource::runs_in_container);
        match self {
            Self::Admin => true,
            Self::ReadOnly => {
                matches!(verb, Verb::Get | Verb::List | Verb::Watch) && !secret() && !runs
            }
            Self::ServiceAccount | Self::Anonymous => false,
        }
    }
}

const AUTHORITY: &str = "nearhop";

/// The names of the Service that every cluster has for its API server.
const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

pub(crate) struct Identity {
    ca: String,
    serving: Pair,
    pub(crate) kubelets: Kubelets,
    pub(crate) admin_token: String,
    pub(crate) read_only_token: String,
}

impl Identity {
    /// Makes an identity, or loads it from a directory. `services` are the cluster IPs of the
    /// server.
    pub(crate) fn load(
        keep: Option<&Path>,
        listen: SocketAddr,
        services: &[IpAddr],
        kubelets: &KubeletOptions,
    ) -> Result<Self, IdentityError> {
        let kept = |name: &str, make: &dyn Fn() -> Result<String, IdentityError>| match keep {
            None => make(),
            Some(directory) => keep_file(&directory.join(name), make),
        };
        let key = kept("ca.key", &|| Ok(pki::new_key()?))?;
        let damaged = |_| IdentityError::Damaged("ca.key".to_owned());
        let authority = Authority::of_key(AUTHORITY, &key).map_err(damaged)?;
        let ca = kept("ca.crt", &|| Ok(authority.certificate().to_owned()))?;
        let subject = Subject {
            common_name: "nearhop apiserver",
            names: NAMES.map(str::to_owned).into(),
            addresses: reached_at(listen.ip(), services),
        };
        Ok(Self {
            serving: authority.issue_server(&subject)?,
            kubelets: Kubelets::new(kubelets, &authority.issue_client(KUBELET_CLIENT)?)?,
            ca,
            admin_token: kept("admin.token", &|| Ok(new_token()))?,
            read_only_token: kept("read-only.token", &|| Ok(new_token()))?,
        })
    }

    /// The role of a bearer token; `None` for an unknown token.
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
        let mut config = server_config(&self.serving, None)?;
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

/// Writes a file that only its owner can read, atomically.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // A killed process with the same PID may have left it.
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// The content of a file, which is made if it is missing.
pub(crate) fn keep_file(
    path: &Path,
    make: &dyn Fn() -> Result<String, IdentityError>,
) -> Result<String, IdentityError> {
    let at = |why| IdentityError::File(path.display().to_string(), why);
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

/// The addresses of a server: the listen address (all of the machine for a wildcard), loopback, and
/// its cluster IPs.
fn reached_at(listen: IpAddr, services: &[IpAddr]) -> Vec<IpAddr> {
    let mut all = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    if listen.is_unspecified() {
        all.extend(interfaces::addresses());
    } else {
        all.push(listen);
    }
    all.extend(services);
    let mut seen = BTreeSet::new();
    all.retain(|address| seen.insert(*address));
    all
}

fn new_token() -> String {
    let bytes: [u8; 32] = rand::rng().random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares in constant time.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}
