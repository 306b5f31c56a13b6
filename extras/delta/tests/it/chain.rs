//! Several deltas: their order, each link, and one delta of all.

use safetensors_core::{Checkpoint, Error};
use safetensors_delta::{Chain, Delta, Encoding, ErrorKind, make};

use crate::support::{Parts, Scratch, Tensors, bytes, content, files, frame, quick};

/// A delta that changes nothing, between two versions.
fn link(scratch: &Scratch, base: &str, version: &str) -> Delta {
    let mut parts = Parts::new("xor", &[]);
    parts.metadata["base_version"] = base.into();
    parts.metadata["version"] = version.into();
    let name = format!("{base}-{version}");
    scratch.write_delta(&name, &parts);
    std::fs::remove_file(scratch.path(&name).join(crate::support::SHARD)).unwrap();
    Delta::open(scratch.path(&name)).unwrap()
}

fn chain(links: &[(&str, &str)]) -> Result<Vec<String>, Error> {
    let scratch = Scratch::new(&Tensors::from([bytes("w", [1])]));
    let deltas = links.iter().map(|(base, version)| link(&scratch, base, version));
    let chain = Chain::new(deltas)?;
    Ok(chain.deltas().iter().map(|delta| delta.version().to_owned()).collect())
}

#[test]
fn deltas_are_put_in_order() {
    let sorted = chain(&[("3", "4"), ("000001", "000002"), ("2", "3"), ("0", "1")]).unwrap();
    assert_eq!(sorted, ["1", "000002", "3", "4"]);
    assert_eq!(chain(&[("b", "c"), ("a", "b")]).unwrap(), ["b", "c"]);
    // Only numbers lose their zeros.
    assert!(chain(&[("a", "0b"), ("b", "c")]).is_err());
}

#[test]
fn deltas_that_form_no_chain_are_refused() {
    let refused = |links: &[(&str, &str)]| chain(links).unwrap_err().to_string();
    let message = |links| refused(links).split_once("json: ").unwrap().1.to_owned();
    assert_eq!(refused(&[]), "expected at least one delta");
    assert_eq!(
        message(&[("0", "1"), ("2", "3")]),
        r#"a delta is missing between the versions "1" and "2"; the delta "3" needs it"#
    );
    assert_eq!(
        message(&[("0", "1"), ("0", "2")]),
        r#"the deltas "1" and "2" both change the version "0", so there is no one result"#
    );
    assert_eq!(message(&[("0", "2"), ("1", "02")]), r#"two deltas lead to the version "02""#);
    assert_eq!(message(&[("0", "1"), ("0", "1")]), r#"two deltas lead to the version "1""#);
    for cycle in
        [&[("0", "1"), ("1", "0")][..], &[("5", "5")], &[("a", "b"), ("0", "1"), ("1", "0")]]
    {
        let message = message(cycle);
        assert!(
            message.contains("from the version") && message.contains("back to it"),
            "{message}"
        );
    }
}

/// Returns the tensors of a training. Each step changes some.
fn step(number: u8) -> Tensors {
    let w = |name: &str, value: u8| bytes(name, vec![value; 300]);
    Tensors::from([w("each", number), w("some", number / 8), w("none", 7)])
}

fn epoch(number: u8) -> String {
    format!("{number:06}")
}

/// Makes deltas of this many steps.
fn train(scratch: &Scratch, steps: u8) -> Vec<String> {
    let names = (1..=steps).map(|number| {
        let old = tempfile::tempdir().unwrap();
        let base = crate::support::write(old.path(), &step(number - 1), u64::MAX);
        let new = tempfile::tempdir().unwrap();
        let new = crate::support::write(new.path(), &step(number), u64::MAX);
        let encoding = if number % 3 == 0 { Encoding::Overwrite } else { Encoding::Xor };
        let options = quick().versions(epoch(number - 1), epoch(number)).encoding(encoding);
        let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
        make(&base, tensors, scratch.path(&epoch(number)), &options).unwrap();
        epoch(number)
    });
    names.collect()
}

#[test]
fn a_chain_of_64_is_verified_by_link_and_squashed() {
    let scratch = Scratch::new(&step(0));
    let names = train(&scratch, 64);
    let open = || names.iter().map(|name| Delta::open(scratch.path(name)).unwrap());
    let chain = Chain::new(open().rev()).unwrap();
    assert_eq!((chain.base_version(), chain.version()), ("000000", "000064"));
    chain.verify(&scratch.base, &quick()).unwrap();
    assert_eq!(
        scratch.apply(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap(),
        step(64)
    );

    // The squashed delta equals the one of the first and the last checkpoint.
    chain.squash(&scratch.base, scratch.path("squashed"), &quick()).unwrap();
    let squashed = Delta::open(scratch.path("squashed")).unwrap();
    assert_eq!((squashed.base_version(), squashed.version()), ("000000", "000064"));
    let options = quick().versions(epoch(0), epoch(64));
    let made = scratch.make("made", &step(64), &options).unwrap();
    assert_eq!(squashed.result_digest(), made.result_digest());
    assert_eq!(squashed.tensors().count(), 2);
    for tensor in made.tensors() {
        assert_eq!(content(&squashed, tensor.name()), content(&made, tensor.name()));
    }
    let bytes = |name: &str| files(&scratch.path(name)).into_values().collect::<Vec<_>>();
    assert_eq!(bytes("squashed"), bytes("made"));

    // A gap in the middle is named.
    let error = Chain::new(open().filter(|delta| delta.version() != "000032")).unwrap_err();
    assert!(
        matches!(error.other(), Some(ErrorKind::Gap { from, base, version })
            if from == "000031" && base == "000032" && version == "000033"),
        "{error}"
    );
}

/// The middle one of three links is wrong in a tensor that the last link repairs.
#[test]
fn each_link_is_checked() {
    let scratch = Scratch::new(&step(0));
    train(&scratch, 3);
    let mut wrong = Parts::new("xor", &[("each", &frame(&[1; 300]), &[1; 300])]);
    wrong.metadata["base_version"] = "000001".into();
    wrong.metadata["version"] = "000002".into();
    scratch.write_delta("000002", &wrong);
    let error = scratch.apply(&["000001", "000002", "000003"]).unwrap_err();
    assert_eq!(error.tensor(), Some("each"));
    assert!(
        matches!(error.other(), Some(ErrorKind::WrongTensor { version, .. }) if version == "000002"),
        "{error}"
    );
    assert!(!scratch.path("applied").exists());
}

#[test]
fn digests_distinguish_deltas_of_two_trainings() {
    let scratch = Scratch::new(&step(0));
    train(&scratch, 2);
    // Another training has published its first version under the same name.
    let options = quick().versions("000000", "000001").overwrite(true);
    let new: Tensors = step(0)
        .into_iter()
        .map(|(name, mut it)| {
            it.2[0] ^= 1;
            (name, it)
        })
        .collect();
    scratch.make("000001", &new, &options).unwrap();
    let error = scratch.apply(&["000001", "000002"]).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::OtherBase { .. })), "{error}");
}

/// A tensor that no delta changes is wrong in the base: only the digest of the whole shows it.
#[test]
fn a_base_with_another_unchanged_tensor_is_another_base() {
    let scratch = Scratch::new(&step(0));
    train(&scratch, 1);
    let mut tensors = step(0);
    tensors.get_mut("none").unwrap().2[299] ^= 1;
    let other = Scratch::new(&tensors);
    let chain = || Chain::new([Delta::open(scratch.path("000001")).unwrap()]).unwrap();
    let error = chain().apply(&other.base, other.path("applied"), &quick()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::WrongBase { .. })), "{error}");
    let squashed = chain().squash(&other.base, other.path("squashed"), &quick());
    assert!(matches!(squashed.unwrap_err().other(), Some(ErrorKind::WrongBase { .. })));
    let left: Vec<_> = files(other.directory.path()).into_keys().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    Checkpoint::open(other.path("base")).unwrap();
}
