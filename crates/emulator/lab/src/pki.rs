//! The certificates by which the lab's API server and its agents know each other.
//!
//! They are made for one run: the authority's own key is forgotten as soon as all are signed. The
//! others' keys are files that only the lab's user may read, in the lab's directory, which Pods do
//! not see. A lab that joins a cluster has none: that cluster's API server reaches no node of the
//! lab, so its agents refuse logs and exec.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nearhop_runtime::pki::{Authority, KUBELET_CLIENT, Pair, PkiError, Subject};

use crate::LabError;
use crate::spec::{Api, Spec};

/// A certificate and its key, as files.
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
    /// Where they are, in the lab's directory.
    pub(crate) fn of(spec: &Spec) -> Option<Self> {
        match spec.api {
            Api::Own { .. } => Some(Self(spec.state.join("pki"))),
            Api::Joined { .. } => None,
        }
    }

    /// Who signs the certificates of both sides.
    pub(crate) fn authority(&self) -> PathBuf {
        self.0.join("kubelet-ca.crt")
    }

    /// What the API server shows to agents.
    pub(crate) fn client(&self) -> PairFiles {
        PairFiles::of(&self.0, "apiserver-kubelet-client")
    }

    /// What the agent of a node shows.
    pub(crate) fn agent(&self, node: &str) -> PairFiles {
        PairFiles::of(&self.0.join("agents"), node)
    }

    /// Makes and writes all of them.
    pub(crate) fn create(&self, spec: &Spec) -> Result<(), LabError> {
        let made = |error: PkiError| self.failed(io::Error::other(error));
        let authority = Authority::create("nearhop lab kubelets").map_err(made)?;
        // What an earlier run of the same directory left is of another authority.
        let _not_there = fs::remove_dir_all(&self.0);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.0.join("agents")).map_err(|cause| self.failed(cause))?;
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

fn write_private(path: &Path, text: &str) -> Result<(), LabError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|cause| LabError::File { path: path.to_owned(), cause })
}
