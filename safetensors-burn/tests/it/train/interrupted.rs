//! Processes that end while they save, and full disks.

use std::process::{Command, ExitStatus, Stdio};

use safetensors_testing::process::command_of;

use super::*;

/// Not a test of its own: what [`run_child`] runs. It saves some records of epoch 1.
#[test]
fn child() {
    let Some(directory) = std::env::var_os("EPOCHS_DIRECTORY") else { return };
    let records = std::env::var("EPOCHS_RECORDS").unwrap();
    let (model, optimizer, scheduler) = Epochs::new(directory).checkpointers();
    let training = Training::trained(2);
    let mut result = Ok(());
    for record in records.chars() {
        result = match record {
            'm' => model.save(1, training.model.clone().into_record()),
            'o' => optimizer.save(1, training.optimizer.to_record()),
            's' => scheduler.save(1, training.scheduler.to_record()),
            _ => std::process::abort(),
        };
        if result.is_err() {
            break;
        }
    }
    match result {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{}", error_of(&error).unwrap());
            std::process::exit(7)
        }
    }
}

/// Runs [`child`] in a process of its own, which `shell` may prepare. Returns how it ended, and
/// what it printed.
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

#[cfg(unix)]
#[test]
fn a_process_that_ends_between_two_records_leaves_the_old_epoch() {
    for records in ["m!", "o!", "ms!", "mo!"] {
        let (_dir, epochs) = empty();
        assert_eq!(run_child(&epochs, records, "").0.code(), None);
        let directory = epochs.path(1).parent().unwrap().to_owned();
        let left = names_in(&directory);
        assert!(left.len() == 1 && left[0].starts_with(".epoch-1."), "{left:?}");
        assert!(epochs.list().unwrap().is_empty());
        // The next save of the epoch removes what was left.
        let training = Training::trained(1);
        training.save(&epochs.checkpointers(), 1);
        assert_eq!(names_in(&directory), ["epoch-1"]);

        assert_eq!(run_child(&epochs, records, "").0.code(), None);
        assert_eq!(epochs.newest().unwrap(), Some(1));
        let restored = Training::restored(&epochs.checkpointers(), 1);
        assert_eq!(restored.model.bits(), training.model.bits());
        assert_eq!(run_child(&epochs, "mos", "").0.code(), Some(0));
        assert_eq!(names_in(&directory), ["epoch-1"]);
        assert_ne!(
            Training::restored(&epochs.checkpointers(), 1).model.bits(),
            training.model.bits()
        );
    }
}

/// A limit on the length of files, as a disk that is full while the optimizer is written.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_epoch() {
    let (_dir, epochs) = saved(1);
    let expected = content(epochs.checkpointers().0.restore(1).unwrap());
    // In blocks of 512 bytes. The file of the optimizer is the longest.
    let len = |name: &str| fs::metadata(epochs.path(1).join(name)).unwrap().len();
    let blocks = len("model.safetensors").div_ceil(512);
    assert!(len("optimizer.safetensors") > blocks * 512);
    let shell = format!("trap '' XFSZ; ulimit -f {blocks};");
    let (status, printed) = run_child(&epochs, "mos", &shell);
    assert_eq!(status.code(), Some(7), "{printed}");
    let path = epochs.path(1).join("optimizer.safetensors");
    assert!(printed.contains(path.to_str().unwrap()), "{printed}");
    assert_eq!(content(epochs.checkpointers().0.restore(1).unwrap()), expected);
    // `exit` runs no destructors, so the hidden directory stays until the next save.
    Training::trained(1).save(&epochs.checkpointers(), 1);
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}

/// Not a test of its own: what [`a_record_is_restored_where_no_thread_can_be_started`] runs.
#[test]
fn restoring_child() {
    let Some(directory) = std::env::var_os("EPOCHS_RESTORED") else { return };
    std::thread::Builder::new().spawn(|| ()).unwrap_err();
    let (model, optimizer, _) = Epochs::new(directory).checkpointers();
    let records = (model.restore(1), optimizer.restore(1));
    eprintln!("{} and {} tensors", records.0.unwrap().len(), records.1.unwrap().len());
}

/// The system refuses a thread whose stack has no place in the address space.
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
    let (models, optimizers, schedulers) = epochs.checkpointers();
    models.save(1, model.into_record()).unwrap();
    optimizers.save(1, optimizer.to_record()).unwrap();
    schedulers.save(1, LrSchedulerRecord::new()).unwrap();

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
