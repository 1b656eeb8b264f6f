//! An embedded API and clients for it.

use std::net::SocketAddr;

use nearhop_apiserver::{ApiServer, Faults, Options};
use nearhop_runtime::client::ClientOptions;
use tempfile::TempDir;

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    directory: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let options = Options { faults: Faults::OnDemand, ..Options::default() };
        let server = ApiServer::start(options).await.expect("the API server starts");
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        server
            .write_kubeconfig(&directory.path().join("kubeconfig"))
            .expect("the kubeconfig is written");
        Self { server, directory }
    }

    pub(crate) fn options(&self) -> ClientOptions {
        ClientOptions {
            kubeconfig: Some(self.directory.path().join("kubeconfig")),
            context: None,
            user_agent: "nearhop-test/1".to_owned(),
        }
    }

    /// Options for a client that reaches the server through another address.
    pub(crate) fn options_through(&self, address: SocketAddr) -> ClientOptions {
        let file = self.directory.path().join(format!("kubeconfig-{}", address.port()));
        let text = self.server.kubeconfig();
        let text = text.replace(&self.server.url(), &format!("https://{address}"));
        std::fs::write(&file, text).expect("the kubeconfig is written");
        ClientOptions { kubeconfig: Some(file), ..self.options() }
    }
}
