//! A file on a web server that answers after 20 ms, and sends 400 MB/s in all.

#[path = "../../../../extras/hub/tests/it/remote/server.rs"]
#[allow(dead_code, reason = "the tests of the package use the rest")]
#[allow(clippy::unwrap_used, reason = "a row fails by panicking, like a test")]
mod server;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use safetensors_bridge::{Checkpoint, LoadOptions, SafeTensors, remote};

use self::server::Server;
use super::Spec;
use harness::data::Data;
use harness::files::Tensor as FileTensor;
use harness::sample::{Contender, Goal, Row};

const LATENCY: Duration = Duration::from_millis(20);
const BANDWIDTH: usize = 400_000_000;
const NAME: &str = "model.safetensors";
const PEER: &str = "one range after the other";
const DOWNLOAD: &str = "a plain download, then Checkpoint::read_all";
const LIMIT: &str = "the whole file by one request";

/// The bytes of each request of the peer, as many as ours has in a call.
const PIECE: u64 = 8 << 20;

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("remote: a header and a tensor of 4 MiB, 20 ms away", one_tensor),
        Spec::new("remote: 1 GiB in 64 tensors, 20 ms away", everything),
    ]
}

/// A server with a file of 64 tensors of this many MiB; the length of the file, and the bytes of
/// one of the tensors.
fn served(data: &Data, mib: usize, tensor: &str) -> Result<(Rc<Server>, u64, Vec<u8>)> {
    let tensors: Vec<_> =
        (0..64).map(|i| FileTensor::bf16(format!("t{i:02}"), &[mib << 19])).collect();
    let bytes = std::fs::read(data.file(&format!("remote-{mib}.safetensors"), &tensors)?.path)?;
    let expected = SafeTensors::parse(&bytes[..])?.view(tensor)?.data().to_vec();
    let len = bytes.len() as u64;
    let server = Server::new().with(NAME, bytes);
    server.slow_down(LATENCY, BANDWIDTH);
    Ok((Rc::new(server), len, expected))
}

fn one_tensor(data: &Data) -> Result<Row> {
    let (server, _, expected) = served(data, 4, "t40")?;
    let address = server.address(NAME);
    let ours = move || -> Result<_> { Ok(remote::open(&address)?.tensor("t40")?.read()?) };
    ensure!(ours()?.bytes() == expected, "our tensor differs");
    let requests = server.take_log().len();
    let contenders = vec![
        Contender::ours("remote::open, LazyTensor::read", move |watch| {
            watch.time(&ours)?;
            Ok(())
        }),
        Contender::peer(PEER, move |watch| {
            let tensor = watch.time(|| -> Result<_> {
                let mut line = Line::to(&server)?;
                let length = line.range(0, 8)?;
                let length = u64::from_le_bytes(*length.first_chunk().context("8 bytes")?);
                let header = line.range(8, length)?;
                let header: serde_json::Value = serde_json::from_slice(&header)?;
                let offset = header["t40"]["data_offsets"][0].as_u64().context("an offset")?;
                line.range(8 + length + offset, 4 << 20)
            })?;
            ensure!(tensor == expected, "the peer's tensor differs");
            Ok(())
        }),
    ];
    let goals = [Goal::Faster(PEER, 1.0), Goal::AtMost("requests", requests as f64, 2.0)];
    Ok(Row::new(contenders).goals(goals).bytes(4 << 20))
}

fn everything(data: &Data) -> Result<Row> {
    let (server, len, expected) = served(data, 16, "t63")?;
    let address = server.address(NAME);
    let ours = move || -> Result<_> { Ok(remote::open(&address)?.read_all(&LoadOptions::new())?) };
    ensure!(ours()?[63].bytes() == expected, "our tensor differs");
    let (limit, downloads) = (Rc::clone(&server), Rc::clone(&server));
    let downloaded = data.path().join("downloaded.safetensors");
    let contenders = vec![
        Contender::ours("remote::open, Checkpoint::read_all", move |watch| {
            watch.time(&ours)?;
            Ok(())
        }),
        Contender::peer(PEER, move |watch| {
            watch.time(|| -> Result<_> {
                let mut line = Line::to(&server)?;
                let pieces = (0..len).step_by(PIECE as usize);
                pieces.map(|at| line.range(at, PIECE.min(len - at))).collect::<Result<Vec<_>>>()
            })?;
            Ok(())
        }),
        Contender::peer(DOWNLOAD, move |watch| {
            let tensors = watch.time(|| -> Result<_> {
                Line::to(&downloads)?.download(len, &downloaded)?;
                Ok(Checkpoint::open(&downloaded)?.read_all(&LoadOptions::new())?)
            })?;
            ensure!(tensors[63].bytes() == expected, "the peer's tensor differs");
            Ok(std::fs::remove_file(&downloaded)?)
        }),
        Contender::limit(LIMIT, move |watch| {
            watch.time(|| Line::to(&limit)?.range(0, len))?;
            Ok(())
        }),
    ];
    let goals = [Goal::Faster(PEER, 1.0), Goal::Faster(DOWNLOAD, 1.0), Goal::OfLimit(LIMIT, 0.8)];
    Ok(Row::new(contenders).goals(goals).bytes(len).samples(5).memory(len))
}

/// A connection, which asks for one range after the other.
struct Line(TcpStream);

impl Line {
    fn to(server: &Server) -> Result<Self> {
        let address = server.address("");
        let host = address.trim_start_matches("http://").trim_end_matches('/');
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    fn range(&mut self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.ask(offset, len)?;
        let mut body = vec![0; len as usize];
        self.0.read_exact(&mut body)?;
        Ok(body)
    }

    /// Downloads the file, by one request.
    fn download(&mut self, len: u64, path: &Path) -> Result<()> {
        self.ask(0, len)?;
        let mut file = File::create(path)?;
        let mut piece = vec![0; 1 << 20];
        let mut left = len;
        while left > 0 {
            let most = piece.len().min(left as usize);
            let read = self.0.read(&mut piece[..most])?;
            ensure!(read > 0, "the answer ended {left} bytes too early");
            file.write_all(&piece[..read])?;
            left -= read as u64;
        }
        Ok(())
    }

    /// Asks for a range, and reads the head of the answer.
    fn ask(&mut self, offset: u64, len: u64) -> Result<()> {
        let range = format!("bytes={offset}-{}", offset + len - 1);
        write!(self.0, "GET /{NAME} HTTP/1.1\r\nHost: loopback\r\nRange: {range}\r\n\r\n")?;
        // The head comes in small pieces; nothing of the body is lost by reading byte by byte.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        ensure!(head.starts_with(b"HTTP/1.1 206"), "{}", String::from_utf8_lossy(&head));
        Ok(())
    }
}
