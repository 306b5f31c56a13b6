//! Downloads a checkpoint from the Hub and prints its tensors:
//! `cargo run -p safetensors-hub --features download --example hub_download -- owner/name [file]`

use std::error::Error;
use std::ops::ControlFlow;
use std::process::ExitCode;

use safetensors_core::Checkpoint;
use safetensors_hub::{DownloadOptions, download};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let repo = arguments.next().ok_or("expected the name of a repository, such as owner/name")?;
    let options = arguments.fold(DownloadOptions::new(), DownloadOptions::include);
    let options = options.progress(|progress| {
        eprint!("\r{} of {} bytes  ", progress.bytes_done, progress.bytes_total);
        ControlFlow::Continue(())
    });
    let snapshot = download(&repo, &options)?;
    eprintln!();
    println!("{}", snapshot.dir().display());
    for tensor in Checkpoint::open(&snapshot)?.tensors() {
        println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
    }
    Ok(())
}
