//! Certificates for the connections between the lab's API server and its agents.
//!
//! Made for one run; the CA's key is never written. The other keys are files that only the lab's user
//! can read, in the lab's directory, which Pods cannot see. A lab that joins a cluster has none: that
//! cluster's API server cannot reach the lab's nodes, so the agents refuse logs and exec.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nearhop_runtime::pki::{Authority, KUBELET_CLIENT, Pair, PkiError, Subject};

use crate::LabError;
use crate::spec::{Api, Spec};
use crate::state::{private_dir, write_private};

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct PairFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl PairFiles {
    fn of(directory: &Path, name: &str) -> Self {
        let file = |ending: &str| directory.join(format!("{name}.{ending}"));
        Self { certificate: file("crt"), key: file("key") }
    }

    fn write(&self, pair: &Pair) -> Result<(), LabError> {
        write_private(&self.certificate, &pair.certificate)?;
        write_private(&self.key, &pair.key)
    }
}

/// The files of a lab that has its own API server.
#[derive(Clone, Debug)]
pub(crate) struct KubeletPki(PathBuf);

impl KubeletPki {
    pub(crate) fn of(spec: &Spec) -> Option<Self> {
        match spec.api {
            Api::Own { .. } => Some(Self(spec.pki())),
            Api::Joined { .. } => None,
        }
    }

    /// The CA's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.0.join("kubelet-ca.crt")
    }

    /// The client certificate of the API server.
    pub(crate) fn client(&self) -> PairFiles {
        PairFiles::of(&self.0, "apiserver-kubelet-client")
    }

    /// The serving certificate of a node's agent.
    pub(crate) fn agent(&self, node: &str) -> PairFiles {
        PairFiles::of(&self.0.join("agents"), node)
    }

    /// Makes and writes all certificates.
    pub(crate) fn create(&self, spec: &Spec) -> Result<(), LabError> {
        let made = |error: PkiError| self.failed(io::Error::other(error));
        let authority = Authority::create("nearhop lab kubelets").map_err(made)?;
        // Certificates of an earlier run have another CA.
        let _not_there = fs::remove_dir_all(&self.0);
        private_dir()
            .recursive(true)
            .create(self.0.join("agents"))
            .map_err(|cause| self.failed(cause))?;
        write_private(&self.authority(), authority.certificate())?;
        self.client().write(&authority.issue_client(KUBELET_CLIENT).map_err(made)?)?;
        for node in &spec.topology.nodes {
            let subject = Subject {
                common_name: &node.name,
                names: vec![node.name.clone()],
                addresses: node.addresses.into(),
            };
            self.agent(&node.name).write(&authority.issue_server(&subject).map_err(made)?)?;
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> LabError {
        LabError::File { path: self.0.clone(), cause }
    }
}
