//! A TCP forwarder to a server. Closing it closes all its connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A forwarder to a server.
pub(crate) struct Gate {
    /// The URL to use instead of the server's.
    pub(crate) url: String,
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let open = Arc::new(watch::Sender::new(true));
        let state = open.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, state.subscribe()));
            }
        });
        Self { url, open }
    }

    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut open: watch::Receiver<bool>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = open.wait_for(|open| !open) => {}
    }
}
