//! Proxies between the client and the API server: small real ones that record the requested
//! targets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use kube::Client;
use nearhop_runtime::client::{ClientOptions, Way, connect_by};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::Cluster;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Socks5,
}

/// A proxy that connects every client to one server, whatever target it requests.
struct Proxy {
    address: SocketAddr,
    requested: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(protocol: Protocol, server: SocketAddr) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("the proxy and the server work");
        let address = listener.local_addr().expect("the proxy and the server work");
        let requested = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requested);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let target = match protocol {
                        Protocol::Http => read_connect(&mut client).await,
                        Protocol::Socks5 => read_socks(&mut client).await,
                    };
                    seen.lock().expect("the proxy and the server work").push(target);
                    let mut server =
                        TcpStream::connect(server).await.expect("the proxy and the server work");
                    let _ended = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, requested }
    }

    fn requested(&self) -> Vec<String> {
        std::mem::take(&mut self.requested.lock().expect("the proxy and the server work"))
    }
}

/// The requested target, with the credentials if there are any.
async fn read_connect(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("the proxy and the server work"));
    }
    let head = String::from_utf8(head).expect("the proxy and the server work");
    let target = head
        .strip_prefix("CONNECT ")
        .expect("the proxy and the server work")
        .split(' ')
        .next()
        .expect("the proxy and the server work");
    let credentials = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization").then_some(value)
    });
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("the proxy and the server work");
    [Some(target), credentials].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

async fn read_socks(client: &mut TcpStream) -> String {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).await.expect("the proxy and the server work");
    let mut methods = vec![0; usize::from(greeting[1])];
    client.read_exact(&mut methods).await.expect("the proxy and the server work");
    client.write_all(&[5, 0]).await.expect("the proxy and the server work");
    let mut request = [0; 5];
    client.read_exact(&mut request).await.expect("the proxy and the server work");
    assert_eq!(request[..4], [5, 1, 0, 3], "a SOCKS5 CONNECT request with a host name");
    let mut name = vec![0; usize::from(request[4])];
    client.read_exact(&mut name).await.expect("the proxy and the server work");
    let port = client.read_u16().await.expect("the proxy and the server work");
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("the proxy and the server work");
    format!("{}:{port}", String::from_utf8(name).expect("the proxy and the server work"))
}

/// A kubeconfig in which the server has another host name.
fn kubeconfig(cluster: &Cluster, host: &str, proxy_url: Option<&str>) -> ClientOptions {
    let options = cluster.options();
    let port = cluster.server.address().port();
    let extra = proxy_url.map(|url| format!("\n    proxy-url: {url}")).unwrap_or_default();
    let server = format!("https://{host}:{port}\n    tls-server-name: 127.0.0.1{extra}");
    let text = cluster.server.kubeconfig();
    let text = text.replace(&cluster.server.url(), &server);
    let file = options
        .kubeconfig
        .as_ref()
        .expect("the proxy and the server work")
        .with_file_name(format!("{host}-{}", extra.len()));
    std::fs::write(&file, text).expect("the proxy and the server work");
    ClientOptions { kubeconfig: Some(file), ..options }
}

async fn client(options: &ClientOptions, variables: &[(&str, &str)]) -> Result<Client, String> {
    let variables: BTreeMap<String, OsString> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
    let variable = move |name: &str| variables.get(name).cloned();
    let client = connect_by(Way::Configured(&variable), options, None).await;
    client.map_err(|error| error.to_string())
}

async fn ask(options: &ClientOptions, variables: &[(&str, &str)]) {
    let client = client(options, variables).await.expect("the proxy and the server work");
    client.apiserver_version().await.expect("the proxy and the server work");
}

/// Not a loopback address by its text, but on this machine: reachable with and without a proxy.
const HERE: &str = "0.0.0.0";
const FOREIGN: &str = "api.example.test";

#[tokio::test]
async fn a_remote_server_is_reached_through_the_proxy_of_the_environment() {
    let cluster = Cluster::start().await;
    let port = cluster.server.address().port();
    let proxy = Proxy::start(Protocol::Http, cluster.server.address()).await;
    let foreign = kubeconfig(&cluster, FOREIGN, None);
    let url = format!("http://me:p%40ss@{}", proxy.address);
    ask(&foreign, &[("HTTPS_PROXY", &url)]).await;
    assert_eq!(proxy.requested(), [format!("{FOREIGN}:{port} Basic bWU6cEBzcw==")]);
    ask(&foreign, &[("https_proxy", &proxy.address.to_string())]).await;
    assert_eq!(proxy.requested(), [format!("{FOREIGN}:{port}")]);

    let socks = Proxy::start(Protocol::Socks5, cluster.server.address()).await;
    ask(&foreign, &[("HTTPS_PROXY", &format!("socks5h://{}", socks.address))]).await;
    assert_eq!(socks.requested(), [format!("{FOREIGN}:{port}")]);
}

#[tokio::test]
async fn loopback_and_no_proxy_addresses_are_reached_directly() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::start(Protocol::Http, cluster.server.address()).await;
    let url = format!("http://{}", proxy.address);
    ask(&cluster.options(), &[("HTTPS_PROXY", &url)]).await;
    assert_eq!(proxy.requested(), [""; 0], "loopback");

    let here = kubeconfig(&cluster, HERE, None);
    for exceptions in ["0.0.0.0", "example.com, 0.0.0.0/8", "*"] {
        ask(&here, &[("HTTPS_PROXY", &url), ("NO_PROXY", exceptions)]).await;
        assert_eq!(proxy.requested(), [""; 0], "{exceptions}");
    }
    ask(&here, &[("HTTPS_PROXY", &url), ("NO_PROXY", "10.0.0.0/8")]).await;
    assert_eq!(proxy.requested().len(), 1);
}

#[tokio::test]
async fn the_proxy_of_the_kubeconfig_takes_precedence() {
    let cluster = Cluster::start().await;
    let [own, other] = [
        Proxy::start(Protocol::Http, cluster.server.address()).await,
        Proxy::start(Protocol::Http, cluster.server.address()).await,
    ];
    let named = kubeconfig(&cluster, FOREIGN, Some(&format!("http://{}", own.address)));
    let environment = format!("http://{}", other.address);
    ask(&named, &[("HTTPS_PROXY", &environment), ("NO_PROXY", "*")]).await;
    assert_eq!((own.requested().len(), other.requested().len()), (1, 0));
}

#[tokio::test]
async fn an_invalid_proxy_variable_fails_only_connections_that_need_it() {
    let cluster = Cluster::start().await;
    let foreign = kubeconfig(&cluster, FOREIGN, None);
    let nonsense = [("HTTPS_PROXY", "::::"), ("NO_PROXY", "[,/:")];
    let error = client(&foreign, &nonsense).await.err().expect("HTTPS_PROXY is invalid");
    assert!(error.starts_with("HTTPS_PROXY does not name a proxy; "), "{error}");
    ask(&cluster.options(), &nonsense).await;

    let named = kubeconfig(&cluster, HERE, Some("http://192.0.2.1:9"));
    let direct =
        connect_by(Way::Direct, &named, None).await.expect("the proxy and the server work");
    direct.apiserver_version().await.expect("Way::Direct ignores the proxy of the kubeconfig");
}
