//! Calls from inside of asynchronous runtimes: they block, and neither panic nor deadlock.

use safetensors_core::LoadOptions;

use tokio::runtime::Builder;

use super::server::Server;
use super::{MIB, file, options, tensors};

fn everything(server: &Server) {
    let tensors = tensors(&[("a", 3 * MIB), ("b", 17 * MIB)]);
    server.put("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    assert!(read.iter().zip(&tensors).all(|(buf, (_, expected))| buf.bytes() == expected.bytes()));
    let address = format!("memory:///runtimes/{:p}.safetensors", server);
    let named = tensors.iter().map(|(name, buf)| (name, buf));
    options().save(&address, named, &Default::default()).unwrap();
    assert_eq!(options().open(&address).unwrap().len(), 2);
}

#[test]
fn a_runtime_of_one_thread_can_read() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::new();
    runtime.block_on(async {
        // More polls than the budget that tokio gives a task.
        for _ in 0..3 {
            everything(&server);
        }
    });
}

#[test]
fn a_runtime_of_several_threads_can_read() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // As many tasks block as there are threads.
    let tasks: Vec<_> =
        (0..2).map(|_| runtime.spawn(async { everything(&Server::new()) })).collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    runtime.block_on(async { everything(&Server::new()) });
    runtime.block_on(runtime.spawn_blocking(|| everything(&Server::new()))).unwrap();
}

#[test]
fn a_runtime_that_ends_takes_nothing_with_it() {
    let server = Server::new();
    let tensors = tensors(&[("a", MIB)]);
    server.put("m.safetensors", file(&tensors));
    let runtime = Builder::new_current_thread().build().unwrap();
    let checkpoint = runtime.block_on(async { options().open(&server.address("m.safetensors")) });
    drop(runtime);
    let read = checkpoint.unwrap().read_all(&LoadOptions::new()).unwrap();
    assert_eq!(read[0].bytes(), tensors[0].1.bytes());
}
