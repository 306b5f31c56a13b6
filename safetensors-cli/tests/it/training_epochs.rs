//! The epochs of a training of burn, with their metrics.

use std::fs;
use std::path::Path;

use predicates::prelude::*;

use crate::fixtures::*;

/// The directory of a training, as burn's loop and safetensors-burn write it: two epochs, of which
/// the second one lacks a file.
pub(crate) fn training_run(run: &Path) {
    for epoch in [9, 10] {
        let path = run.join(format!("checkpoints/epoch-{epoch}"));
        fs::create_dir_all(&path).unwrap();
        for name in ["model", "optimizer"] {
            small_file(&path, &format!("{name}.safetensors"));
        }
        let bytes = fs::metadata(path.join("model.safetensors")).unwrap().len();
        let file = format!(r#"{{"bytes":{bytes},"tensors":2,"header_xxh3_128":"0"}}"#);
        let manifest = format!(
            r#"{{"format":"safetensors-bridge epoch","version":1,"epoch":{epoch},
                "files":{{"model.safetensors":{file},"optimizer.safetensors":{file}}}}}"#
        );
        fs::write(path.join("manifest.json"), manifest).unwrap();
    }
    fs::remove_file(run.join("checkpoints/epoch-10/optimizer.safetensors")).unwrap();
    for (log, lines) in [
        ("train/epoch-9/Loss.log", "0.5,3\n1.5,1\n"),
        ("train/epoch-9/Iteration_Speed.log", "1\n2\n\n"),
        ("train/epoch-9/Text.log", "none\n"),
        ("train/epoch-10/Loss.log", ""),
        ("valid/epoch-10/Loss.log", "7,2\n0.25,final\n"),
    ] {
        fs::create_dir_all(run.join(log).parent().unwrap()).unwrap();
        fs::write(run.join(log), lines).unwrap();
    }
}

#[test]
fn epochs_have_their_sizes_and_metrics() {
    let dir = temp_dir();
    training_run(&dir.path().join("run"));
    // The directory of the epochs itself shows the same.
    for path in ["run", "run/checkpoints"] {
        let shown = run_in(dir.path(), &["inspect", path]).code(1).stderr("");
        let shown = text(&shown.get_output().stdout).to_owned();
        let lines: Vec<_> = shown.lines().collect();
        let words = |line: usize| lines[line].split("  ").map(str::trim).filter(|w| !w.is_empty());
        let titles: Vec<_> = words(0).collect();
        assert_eq!(
            titles,
            [
                "epoch",
                "parameters",
                "model",
                "all files",
                "train Iteration Speed",
                "train Loss",
                "valid Loss"
            ],
            "{shown}"
        );
        let row: Vec<_> = words(2).collect();
        assert_eq!((row[0], &row[4..]), ("9", &["1.5", "0.75"][..]), "{shown}");
        assert_eq!(words(3).collect::<Vec<_>>(), ["10", "0 B", "0.25"], "{shown}");
        assert!(shown.contains("2 epochs in run"), "{shown}");
        assert!(shown.contains("epoch 10 is not complete: run/checkpoints/epoch-10/"), "{shown}");
    }
    let shown = run_in(dir.path(), &["inspect", "--json", "run"]).code(1);
    let json: serde_json::Value = serde_json::from_str(text(&shown.get_output().stdout)).unwrap();
    let epoch = &json["trainings"][0]["epochs"][0];
    assert_eq!((&epoch["epoch"], &epoch["metrics"]["train"]["Loss"]), (&9.into(), &0.75.into()));
    assert_eq!(epoch["files"][1]["name"], "optimizer.safetensors");
}

/// The last but two epoch of a run of `model-examples/examples/burn_train.rs`, as it was written.
#[test]
fn a_run_that_burn_has_written_is_complete() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let shown = run_in(&run, &["inspect", "burn_run"]).success().stderr("");
    let shown = text(&shown.get_output().stdout).to_owned();
    let row: Vec<_> = shown.lines().nth(2).unwrap().split("  ").map(str::trim).collect();
    let row: Vec<_> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
    assert_eq!(row, ["14", "97", "1.2 kB", "4.0 kB", "0.1705", "0.1455"], "{shown}");
    assert!(shown.contains("1 epoch in burn_run/checkpoints: 4.0 kB"), "{shown}");
}

#[test]
fn a_directory_without_epochs_is_an_error_as_before() {
    let dir = temp_dir();
    let run = dir.path().join("run");
    training_run(&run);
    // burn's logs alone, and manifests that lead elsewhere or are of something else.
    fs::rename(run.join("checkpoints"), dir.path().join("away")).unwrap();
    let none = predicate::str::contains("run: expected model.safetensors");
    run_in(dir.path(), &["inspect", "run"]).code(1).stdout("").stderr(none);
    let epoch = dir.path().join("away/epoch-9");
    for (manifest, is_epoch) in [
        (r#"{"format":"safetensors-bridge epoch","files":{"../x":{"bytes":1}}}"#, true),
        (r#"{"format":"other","files":{}}"#, false),
        ("[[[[", false),
    ] {
        fs::write(epoch.join("manifest.json"), manifest).unwrap();
        fs::write(epoch.with_file_name("epoch-10").join("manifest.json"), "").unwrap();
        let shown = run_in(dir.path(), &["inspect", "away"]).code(1);
        let shown = text(&shown.get_output().stdout).to_owned();
        assert_eq!(shown.contains("it names a file elsewhere"), is_epoch, "{shown}");
    }
}
