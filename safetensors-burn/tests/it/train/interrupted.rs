//! Processes that end while they save, and full disks.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use safetensors_testing::process::command_of;

use super::long::begun;
use super::*;

/// Runs only in [`run_child`]. Saves some records of epoch 1.
#[test]
fn child() {
    let Some(directory) = std::env::var_os("EPOCHS_DIRECTORY") else { return };
    let records = std::env::var("EPOCHS_RECORDS").unwrap();
    let (model, optimizer, scheduler) = Epochs::new(directory).checkpointers_without_module();
    let training = Training::trained(2);
    let mut result = Ok(());
    for record in records.chars() {
        result = match record {
            'm' => model.save(1, training.model.clone().into_record()),
            'o' => optimizer.save(1, training.optimizer.to_record()),
            's' => scheduler.save(1, training.scheduler.to_record()),
            _ => unreachable!("no record"),
        };
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        std::process::exit(0);
    }
    eprintln!("{}", unwrap_error(result));
    std::process::exit(7);
}

/// Runs [`child`] in a separate process, which `shell` may prepare. Returns how it ended, and its
/// output.
fn run_child(epochs: &Epochs, records: &str, shell: &str) -> (ExitStatus, String) {
    let directory = epochs.path(1).parent().unwrap().to_owned();
    let itself = command_of(child);
    let output = Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(itself.get_program())
        .args(itself.get_args())
        .env("EPOCHS_DIRECTORY", directory)
        .env("EPOCHS_RECORDS", records)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

/// Runs only as a child process: saves epochs, each twice, and deletes older ones.
#[test]
fn killed_child() {
    let Some(directory) = std::env::var_os("EPOCHS_KILLED") else { return };
    let epochs = Epochs::new(directory);
    #[cfg(feature = "delta")]
    let epochs = epochs.whole_every(3);
    let (mut run, checkpointers) = (begun(), epochs.checkpointers_without_module());
    let (model, optimizer, scheduler) = &checkpointers;
    let next = epochs.newest().unwrap().unwrap_or(0) + 1;
    for epoch in next..next + 3 {
        for _ in 0..2 {
            run.next();
            println!("saving");
            model.save(epoch, run.model.clone().into_record()).unwrap();
            println!("saving");
            optimizer.save(epoch, run.optimizer.to_record()).unwrap();
            println!("saving");
            scheduler.save(epoch, run.scheduler.to_record()).unwrap();
        }
        if epoch > 2 {
            delete(&checkpointers, epoch - 2).unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_epochs_that_can_all_be_restored() {
    let (_dir, epochs) = saved(1);
    let mut newest = 1;
    for round in 0..=9_u64 {
        let mut child = command_of(killed_child)
            .env("EPOCHS_KILLED", epochs.path(1).parent().unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut saves = lines.map(Result::unwrap).filter(|line| line.ends_with("saving"));
        // The last one ends without a kill. Where in the save of a record another one is killed is
        // left to chance; an even one is killed between two records.
        if round == 9 {
            assert!(saves.by_ref().count() > 0 && child.wait().unwrap().success());
        } else {
            assert!(saves.by_ref().take(2 + 2 * round as usize % 14).count() > 0);
            std::thread::sleep(Duration::from_micros(round % 2 * round * 3970 % 20_030));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for epoch in epochs.list().unwrap() {
            assert!(epoch.problem().is_none(), "{:?}", epoch.problem());
            epochs.verify(epoch.number()).unwrap();
        }
        let found = epochs.newest().unwrap().unwrap();
        assert!(found >= newest, "{found} after {newest}");
        newest = found;
        restored(&epochs.checkpointers_without_module(), newest);
    }
    let left = names_in(epochs.path(1).parent().unwrap());
    assert!(left.iter().all(|name| name.starts_with("epoch-")), "{left:?}");
}

/// A limit on the length of files, as a disk that is full while the optimizer is written.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_epoch() {
    let (_dir, epochs) = saved(1);
    let expected = content(epochs.checkpointers_without_module().0.restore(1).unwrap());
    // In blocks of 512 bytes. The file of the optimizer is the longest.
    let len = |name: &str| fs::metadata(epochs.path(1).join(name)).unwrap().len();
    let blocks = len("model.safetensors").div_ceil(512);
    assert!(len("optimizer.safetensors") > blocks * 512);
    let shell = format!("trap '' XFSZ; ulimit -f {blocks};");
    let (status, printed) = run_child(&epochs, "mos", &shell);
    assert_eq!(status.code(), Some(7), "{printed}");
    let path = epochs.path(1).join("optimizer.safetensors");
    assert!(printed.contains(path.to_str().unwrap()), "{printed}");
    assert_eq!(content(epochs.checkpointers_without_module().0.restore(1).unwrap()), expected);
    // `exit` runs no destructors, so the hidden directory stays until the next save.
    Training::trained(1).save(&epochs.checkpointers_without_module(), 1);
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}

/// Runs only in [`a_record_is_restored_where_no_thread_can_be_started`].
#[test]
fn restoring_child() {
    let Some(directory) = std::env::var_os("EPOCHS_RESTORED") else { return };
    std::thread::Builder::new().spawn(|| ()).unwrap_err();
    let (model, optimizer, _) = Epochs::new(directory).checkpointers_without_module();
    let records = (model.restore(1), optimizer.restore(1));
    eprintln!("{} and {} tensors", records.0.unwrap().len(), records.1.unwrap().len());
}

/// The system refuses a thread if its stack does not fit the address space.
#[cfg(target_os = "linux")]
#[test]
fn a_record_is_restored_where_no_thread_can_be_started() {
    let (_dir, epochs) = empty();
    let device = Device::default().autodiff();
    // Enough bytes for several threads.
    let model: Vec<Linear> = (0..4).map(|_| LinearConfig::new(512, 512).init(&device)).collect();
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let loss = model.iter().map(|layer| layer.weight.val().powi_scalar(2).mean());
    let loss = loss.reduce(|a, b| a + b).unwrap();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = optimizer.step(0.1, model, gradients);
    save_records(&epochs.checkpointers_without_module(), 1, model, optimizer.to_record());

    let output = command_of(restoring_child)
        .env("EPOCHS_RESTORED", epochs.path(1).parent().unwrap())
        .env("SAFETENSORS_THREADS", "4")
        .env("RUST_MIN_STACK", (1_u64 << 47).to_string())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("8 and 8 tensors"), "{printed}");
}
