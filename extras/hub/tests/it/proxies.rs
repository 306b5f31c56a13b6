//! The proxies that the environment names: downloads and stores go through the same ones, and a
//! proxy that cannot be used is an error before anything is sent.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::server::{self, Server};
use crate::support::*;
use safetensors_hub::client::ClientOptions;
use safetensors_hub::{DownloadOptions, download};

/// A name that only the proxy can look up.
const HOST: &str = "hub.corp.test";

/// A proxy that speaks SOCKS 5. Whatever the name, it connects to the loopback.
struct Socks {
    address: SocketAddr,
    /// The hosts that it was asked to connect to.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Socks {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let log = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let log = log.clone();
                // A client that goes away is no failure of the proxy.
                thread::spawn(move || _ = serve(stream, &log));
            }
        });
        Self { address, asked }
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn read(mut stream: &TcpStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

fn serve(mut client: TcpStream, log: &Mutex<Vec<String>>) -> io::Result<()> {
    // The ways to log in: 0 for none, 2 for a name and a password.
    let methods = read(&client, 2)?[1];
    let method = read(&client, methods.into())?.into_iter().max().unwrap();
    client.write_all(&[5, method])?;
    if method == 2 {
        let len = read(&client, 2)?[1];
        read(&client, len.into())?;
        let len = read(&client, 1)?[0];
        assert_eq!(read(&client, len.into())?, b"s3cret");
        client.write_all(&[1, 0])?;
    }
    let host = match read(&client, 4)?[3] {
        3 => {
            let len = read(&client, 1)?[0];
            String::from_utf8(read(&client, len.into())?).unwrap()
        }
        _ => read(&client, 4)?.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
    };
    let port = u16::from_be_bytes(read(&client, 2)?.try_into().unwrap());
    log.lock().unwrap().push(format!("{host}:{port}"));
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    io::copy(&mut server, &mut client).map(drop)
}

/// Run by the tests below in a process with the variables of a proxy.
#[test]
fn child() {
    let Ok(web) = std::env::var("HUB_TEST_WEB") else { return };
    let client = ClientOptions::new().retries(0).connect_timeout(Duration::from_secs(5));
    match download(REPO, &DownloadOptions::new().client(client)) {
        Ok(_) => println!("downloaded"),
        Err(error) => println!("not downloaded: {error}"),
    }
    #[cfg(feature = "remote")]
    {
        use safetensors_hub::remote::RemoteOptions;
        let mut options = RemoteOptions::new().retries(0);
        if let Ok(proxy) = std::env::var("HUB_TEST_OPTION") {
            options = options.option("proxy_url", proxy);
        }
        match options.open(&web) {
            Ok(_) => println!("opened"),
            Err(error) => println!("not opened: {error}"),
        }
    }
    #[cfg(not(feature = "remote"))]
    drop(web);
}

/// Returns the messages of a download and a store with these variables. The host of the server has
/// this name.
fn run(server: &Server, host: &str, variables: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let endpoint = server.endpoint.replace("127.0.0.1", host);
    let web = format!("{endpoint}/{REPO}/resolve/main/model.safetensors");
    let all = [
        &[
            ("HF_HOME", home.path().to_str().unwrap()),
            ("HF_ENDPOINT", &endpoint),
            ("HF_TOKEN", server::TOKEN),
            ("HUB_TEST_WEB", &web),
        ],
        variables,
    ];
    let output = child_process(child, &all.concat()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{variables:?}: {text}");
    assert!(!text.contains("s3cret"), "{text}");
    text
}

fn assert_works(text: &str) {
    assert!(text.contains("downloaded") && !text.contains("not downloaded"), "{text}");
    assert!(!text.contains("not opened"), "{text}");
    assert_eq!(text.contains("opened"), cfg!(feature = "remote"), "{text}");
}

#[test]
fn both_clients_go_through_the_proxy_that_python_would_take() {
    let server = Server::start([(REPO, single(100))]);
    let socks = Socks::start();
    let port = server.endpoint.rsplit(':').next().unwrap();
    let address = &*format!("socks5://u:s3cret@{}", socks.address);
    let by_name = &*format!("socks5h://{}", socks.address);
    // Nothing listens there.
    let dead = "http://127.0.0.1:9";
    for variables in [
        &[("ALL_PROXY", address)][..],
        &[("ALL_PROXY", dead), ("HTTP_PROXY", by_name)],
        &[("HTTP_PROXY", dead), ("http_proxy", by_name)],
        // An empty variable in lower case takes the other one back.
        &[("HTTP_PROXY", dead), ("http_proxy", ""), ("all_proxy", address)],
        &[("HTTP_PROXY", by_name), ("NO_PROXY", "rp.test,other.test,hub.corp.test:1")],
    ] {
        assert_works(&run(&server, HOST, variables));
        let asked = socks.take_asked();
        let expected = format!("{HOST}:{port}");
        assert!(asked.contains(&expected), "{variables:?} {asked:?}");
    }
    for exceptions in ["127.0.0.1", "x.test, 127.0.0.0/8", "*"] {
        assert_works(&run(&server, "127.0.0.1", &[("ALL_PROXY", dead), ("NO_PROXY", exceptions)]));
    }
}

#[test]
fn a_proxy_that_cannot_be_used_is_an_error_before_anything_is_sent() {
    let server = Server::start([(REPO, single(100))]);
    let socks = Socks::start();
    for bad in ["socks4://u:s3cret@HERE", "ftp://HERE", "http://", "http://h:99999", "http://a b"] {
        let bad = bad.replace("HERE", &socks.address.to_string());
        for name in ["ALL_PROXY", "HTTP_PROXY", "http_proxy"] {
            let text = run(&server, "127.0.0.1", &[(name, &bad)]);
            let named = name.to_uppercase();
            assert!(text.contains("not downloaded") && text.contains(&named), "{bad}: {text}");
            assert!(text.contains("not opened") == cfg!(feature = "remote"), "{bad}: {text}");
            assert_eq!(text.matches(&named).count(), 1 + usize::from(cfg!(feature = "remote")));
        }
    }
    assert!(server.log().is_empty(), "{:?}", server.log());
    assert!(socks.take_asked().is_empty());
}

#[cfg(feature = "remote")]
#[test]
fn the_proxy_of_an_option_goes_before_the_environment() {
    let server = Server::start([(REPO, single(100))]);
    let socks = Socks::start();
    let (dead, by_name) = ("http://127.0.0.1:9", format!("socks5h://{}", socks.address));
    let text = run(&server, HOST, &[("ALL_PROXY", dead), ("HUB_TEST_OPTION", &by_name)]);
    assert!(text.contains("not downloaded") && !text.contains("not opened"), "{text}");
    assert!(text.contains("the proxy is 127.0.0.1:9"), "{text}");
    let text = run(&server, "127.0.0.1", &[("HUB_TEST_OPTION", "ftp://127.0.0.1:9")]);
    assert!(text.contains("not opened") && text.contains("proxy_url"), "{text}");
}
