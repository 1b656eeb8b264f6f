//! A TCP forwarder that can interrupt a connection without closing it: bytes wait until it resumes.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Nothing,
    /// Only the replies of the server; requests still arrive.
    Answers,
    Everything,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    cut: watch::Sender<Cut>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let cut = watch::Sender::new(Cut::Nothing);
        let seen = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let open = |cut: Cut| cut != Cut::Everything;
                tokio::spawn(forward(from_client, to_server, seen.clone(), open));
                let open = |cut: Cut| cut == Cut::Nothing;
                tokio::spawn(forward(from_server, to_client, seen.clone(), open));
            }
        });
        Self { address, cut }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }
}

/// Ends when one side closes, or when the test ends.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cut: watch::Receiver<Cut>,
    open: impl Fn(Cut) -> bool,
) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if cut.wait_for(|cut| open(*cut)).await.is_err()
            || to.write_all(&bytes[..count]).await.is_err()
        {
            return;
        }
    }
}
