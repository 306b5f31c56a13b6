//! Calls that fail, each in turn: the destination stays, and nothing is left next to it.

use safetensors_core::{Checkpoint, Limits, Result};
use safetensors_delta::{Chain, Delta, Encoding, make};

use crate::hooked::Hooked;
use crate::support::{Scratch, Tensors, bytes, files, quick, read};

fn tensors(value: u8) -> Tensors {
    (0..4).map(|i| bytes(&format!("w{i}"), vec![value * (i % 3); 3000])).collect()
}

/// Does some work while each of its calls fails in turn. Returns how many calls there are.
fn fail_each(scratch: &Scratch, work: impl Fn(&Hooked) -> Result<()>) -> usize {
    let before = files(scratch.directory.path());
    for number in 0.. {
        let store = Hooked::broken_from(number);
        let done = work(&store);
        if store.calls() <= number {
            done.unwrap();
            return number;
        }
        let error = done.unwrap_err();
        assert!(error.to_string().contains("the disk is broken"), "{error}");
        assert_eq!(files(scratch.directory.path()), before, "call {number}");
    }
    unreachable!()
}

#[test]
fn a_call_that_fails_changes_nothing() {
    let scratch = Scratch::new(&tensors(1));
    for encoding in [Encoding::Xor, Encoding::Overwrite] {
        let options = quick().encoding(encoding).overwrite(true);
        scratch.make("delta", &tensors(2), &options).unwrap();
        crate::support::write(&scratch.path("out"), &tensors(3), u64::MAX);
        let calls = fail_each(&scratch, |store| {
            let base =
                Checkpoint::open_in(store.clone(), scratch.path("base"), &Limits::default())?;
            let delta = Delta::open_in(store.clone(), scratch.path("delta"), &Limits::default())?;
            Chain::new([delta])?.apply(&base, scratch.path("out"), &options).map(drop)
        });
        assert!(calls > 10, "{calls}");
        assert_eq!(read(&scratch.path("out")), tensors(2));

        let calls = fail_each(&scratch, |store| {
            let open =
                |name| Checkpoint::open_in(store.clone(), scratch.path(name), &Limits::default());
            let (old, new) = (open("base")?, open("out")?);
            let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
            make(&old, tensors, scratch.path("delta"), &options).map(drop)
        });
        assert!(calls > 10, "{calls}");
    }
}
