//! A Hub over TLS, with its own certificates: which are trusted, and that no request leaves
//! encryption. The certificates and the key in `tests/tls` are for nothing but these tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use safetensors_hub::Revision;
use safetensors_hub::client::{Client, ClientOptions};
use safetensors_testing::process::command_of;

const COMMIT: &str = "0123456789012345678901234567890123456789";

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Starts a server that answers each request with this head and body, and keeps the requests.
fn serve(head: String, body: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server-key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut input = BufReader::new(StreamOwned::new(connection, stream));
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") {
                match input.read_line(&mut request) {
                    Ok(len) if len > 0 => {}
                    _ => break,
                }
            }
            if request.is_empty() {
                continue;
            }
            seen.lock().unwrap().push(request);
            let mut output = input.into_inner();
            let answer = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = output.write_all(answer.as_bytes());
            output.conn.send_close_notify();
            let _ = output.flush();
            let _ = output.sock.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = output.read(&mut [0; 64]);
        }
    });
    (endpoint, requests)
}

fn listing() -> (String, String) {
    let body = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "a"}}]}}"#);
    ("200 OK\r\nConnection: close".into(), body)
}

/// Asks for the files of a repository in a separate process, because the variables are read there.
fn ask(endpoint: &str, certificates: Option<&Path>) -> String {
    let mut command = command_of(child);
    command.env("HUB_TEST_ENDPOINT", endpoint);
    command.env_remove("SSL_CERT_FILE").env_remove("REQUESTS_CA_BUNDLE");
    if let Some(path) = certificates {
        command.env("SSL_CERT_FILE", path);
    }
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Run by [`ask`].
#[test]
fn child() {
    let Ok(endpoint) = std::env::var("HUB_TEST_ENDPOINT") else { return };
    let options = ClientOptions::new().endpoint(endpoint).token(Some("hf_secret"));
    let repo = "owner/name".parse().unwrap();
    let listed = Client::new(&options).and_then(|client| client.files(&repo, &Revision::default()));
    match listed {
        Ok(listed) => println!("listed {:?} at {}", listed.files, listed.commit),
        Err(error) => println!("failed: {error}"),
    }
}

#[test]
fn certificates_are_checked_and_can_be_added() {
    let (head, body) = listing();
    let (endpoint, requests) = serve(head, body);
    let begin = Instant::now();
    let text = ask(&endpoint, None);
    assert!(
        text.contains("failed: owner/name: 127.0.0.1") && text.contains("certificate"),
        "{text}"
    );
    assert!(text.contains("SSL_CERT_FILE"), "{text}");
    // Its retries would take 15 seconds.
    assert!(begin.elapsed() < Duration::from_secs(10), "it is not tried again");
    assert_eq!(requests.lock().unwrap().len(), 0);

    let text = ask(&endpoint, Some(&file("authority.pem")));
    assert!(text.contains(&format!(r#"listed ["a"] at {COMMIT}"#)), "{text}");
    assert!(requests.lock().unwrap()[0].contains("Bearer hf_secret"));
    // Not every file has certificates.
    let text = ask(&endpoint, Some(&file("server-key.pem")));
    assert!(text.contains("failed: SSL_CERT_FILE") && text.contains("no certificate"), "{text}");
    let text = ask(&endpoint, Some(Path::new("/nowhere/x.pem")));
    assert!(text.contains("failed: /nowhere/x.pem"), "{text}");
}

#[test]
fn no_redirect_leads_to_plain_http() {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    plain.set_nonblocking(true).unwrap();
    let target =
        format!("http://{}/api/models/owner/name/revision/main", plain.local_addr().unwrap());
    let head = format!("307 -\r\nConnection: close\r\nLocation: {target}");
    let (endpoint, requests) = serve(head, String::new());
    let text = ask(&endpoint, Some(&file("authority.pem")));
    assert!(text.contains("failed") && text.contains("without encryption"), "{text}");
    assert_eq!(requests.lock().unwrap().len(), 1);
    assert!(plain.accept().is_err(), "no connection was made");
}
