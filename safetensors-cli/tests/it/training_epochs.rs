//! The epochs of a training of burn, with their metrics.

use safetensors_core::digest::Digest;
use safetensors_delta::{Options, make_linked};

use crate::fixtures::*;

/// Makes the directory of a training, as burn's loop and safetensors-burn write it: two epochs; the
/// second one lacks a file.
pub(crate) fn training_run(run: &Path) {
    for epoch in [9, 10] {
        let path = run.join(format!("checkpoints/epoch-{epoch}"));
        fs::create_dir_all(&path).unwrap();
        for name in ["model", "optimizer"] {
            small_file(&path, &format!("{name}.safetensors"));
        }
        let file = format!(r#"{{{},"tensors":2}}"#, stored(&path.join("model.safetensors")));
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

/// Returns the manifest's entry of a file.
fn stored(path: &Path) -> String {
    let bytes = fs::metadata(path).unwrap().len();
    let digest = Digest::of_header(fs::File::open(path).unwrap()).unwrap();
    format!(r#""bytes":{bytes},"header_xxh3_128":"{digest}""#)
}

#[test]
fn epochs_have_their_sizes_and_metrics() {
    let dir = temp_dir();
    training_run(&dir.at("run"));
    // The directory of the epochs itself shows the same.
    for path in ["run", "run/checkpoints"].map(native) {
        let shown = dir.run(&["inspect", &path]).code(1).stderr("").out();
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
        let incomplete = native("epoch 10 is not complete: run/checkpoints/epoch-10/");
        assert!(shown.contains(&incomplete), "{shown}");
    }
    let json = dir.run("inspect --json run").code(1).json();
    let epoch = &json["trainings"][0]["epochs"][0];
    assert_eq!((&epoch["epoch"], &epoch["metrics"]["train"]["Loss"]), (&9.into(), &0.75.into()));
    assert_eq!(epoch["files"][1]["name"], "optimizer.safetensors");
}

/// The last but two epoch of a run of `examples/models/examples/burn_train.rs`, as it was written.
#[test]
fn a_run_that_burn_has_written_is_complete() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let shown = run_in(&run, "inspect burn_run").quiet().out();
    let row: Vec<_> = shown.lines().nth(2).unwrap().split("  ").map(str::trim).collect();
    let row: Vec<_> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
    assert_eq!(row, ["14", "97", "1.2 kB", "4.0 kB", "0.1705", "0.1455"], "{shown}");
    assert!(shown.contains(&native("1 epoch in burn_run/checkpoints: 4.0 kB")), "{shown}");
    // The file of the scheduler has no tensors, and so no digests.
    run_in(&run, "verify --digests --strict burn_run").quiet();
}

/// Makes two epochs; the second one has a delta of the first one's model, as safetensors-burn
/// writes it.
fn run_with_a_delta(run: &Path) {
    let file = |epoch: usize| run.join(format!("epoch-{epoch}/model.safetensors"));
    let mut values: Vec<_> = (0..2000_u32).map(|i| i.wrapping_mul(2_654_435_769) as f32).collect();
    for epoch in [1, 2] {
        fs::create_dir_all(file(epoch).parent().unwrap()).unwrap();
        values[epoch] = 0.5;
        let extra = [values[0]];
        let tensors = [("w", array(&[50, 40], &values)), ("extra", array(&[1], &extra))];
        save(file(epoch), tensors.into_iter().take(epoch), &SaveOptions::new()).unwrap();
    }
    let directory = run.join("epoch-2/model.delta");
    let options = Options::new().versions("epoch-1", "epoch-2");
    assert!(make_linked(file(1), file(2), &directory, &options).unwrap());
    let whole = fs::metadata(file(2)).unwrap().len();
    fs::rename(file(2), run.with_file_name("whole.safetensors")).unwrap();
    let part = |name: &str| format!(r#""{name}":{{{}}}"#, stored(&directory.join(name)));
    let parts = ["model.safetensors.index.json", "model-00000-of-00001.safetensors"].map(part);
    let base = stored(&file(1));
    let parts = parts.join(",");
    let delta = format!(r#","delta":{{"epoch":1,"base":{{{base}}},"files":{{{parts}}}}}"#);
    for (epoch, delta) in [(1, ""), (2, &*delta)] {
        let bytes = if epoch == 1 { fs::metadata(file(1)).unwrap().len() } else { whole };
        let manifest = format!(
            r#"{{"format":"safetensors-bridge epoch","version":2,"epoch":{epoch},"files":{{
                "model.safetensors":{{"bytes":{bytes},"tensors":{epoch}{delta}}}}}}}"#
        );
        fs::write(file(epoch).with_file_name("manifest.json"), manifest).unwrap();
    }
}

#[test]
fn an_epoch_saved_as_a_delta_is_shown_verified_and_applied() {
    let dir = temp_dir();
    run_with_a_delta(&dir.at("run"));
    let run = |args: &[&str]| dir.run(args);
    let shown = run(&["inspect", "run"]).quiet().out();
    let words = |line: &str| line.split("  ").map(|it| it.trim().to_owned()).collect::<Vec<_>>();
    let rows: Vec<_> = shown.lines().map(words).collect();
    let cells = |row: usize| rows[row].iter().filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
    assert_eq!(cells(0)[..3], ["epoch", "delta of", "parameters"], "{shown}");
    assert_eq!(cells(2)[..2], ["1", "2,000"], "{shown}");
    assert_eq!(cells(3)[..3], ["2", "1", "2,001"], "{shown}");
    let json = run(&["inspect", "--json", "run"]).success().json();
    let epochs = &json["trainings"][0]["epochs"];
    assert_eq!(epochs[0]["files"][0].get("base"), None);
    let file = &epochs[1]["files"][0];
    assert_eq!((&file["base"], &file["tensors"]), (&1.into(), &2.into()));
    assert!(file["bytes"].as_u64() < epochs[0]["files"][0]["bytes"].as_u64(), "{json}");

    // The epoch itself is a delta, and refused as a model.
    let is_delta = contains("a delta from epoch-1 to epoch-2: 2 tensors");
    run(&["inspect", "run/epoch-2"]).success().stdout(is_delta.clone());
    run(&["verify", "run/epoch-2"]).success().stdout(is_delta);
    let refused = contains("this is a delta of");
    run(&["stats", "run/epoch-2"]).code(1).stderr(refused);
    let base = "run/epoch-2/model.delta/epoch-1";
    run(&["delta", "apply", base, "run/epoch-2/model.delta", "whole"]).success();
    run(&["diff", "whole", "whole.safetensors"]).success();
    let complete = contains(native("run/epoch-2: ok, complete, 1 file"));
    run(&["verify", "run"]).success().stdout(complete);

    dir.write("run/epoch-2/model.delta/model-00000-of-00001.safetensors", "");
    let damaged = native("epoch 2 is not complete: run/epoch-2/model.delta/");
    run(&["inspect", "run"]).code(1).stdout(contains(damaged));
}

/// Each part of an epoch that differs from the manifest, with the message of `verify` about it.
#[test]
fn verify_names_incomplete_epochs_with_the_reason() {
    let dir = temp_dir();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/burn_run");
    let epoch = dir.at("run/checkpoints/epoch-14");
    let model = epoch.join("model.safetensors");
    let set_metadata = || {
        // As a program does that knows of no manifests.
        let other = dir.at("other.safetensors");
        fs::rename(&model, &other).unwrap();
        dir.run("metadata set other.safetensors license=mit").success();
        fs::rename(&other, &model).unwrap();
    };
    let changes: [(&dyn Fn(), &str); 7] = [
        (&|| (), ""),
        (&set_metadata, "should have"),
        (&|| fs::remove_file(&model).unwrap(), "model.safetensors: No such file"),
        (
            &|| fs::remove_file(epoch.join("manifest.json")).unwrap(),
            "manifest.json: there is no such file",
        ),
        (&|| fs::write(epoch.join("manifest.json"), "{}").unwrap(), "missing field"),
        // The header keeps its length.
        (&|| flip(&model), "the header has changed: its XXH3-128 should be"),
        (&|| fs::rename(&epoch, epoch.with_file_name("epoch-15")).unwrap(), "epoch 15, found 14"),
    ];
    for (change, why) in changes {
        let _ = fs::remove_dir_all(dir.at("run"));
        copy_all(&fixture, &dir.at("run"));
        // Another one, by which the run is one of epochs.
        copy_all(&epoch, &epoch.with_file_name("epoch-13"));
        let other = epoch.with_file_name("epoch-13").join("manifest.json");
        let manifest = fs::read_to_string(&other).unwrap();
        fs::write(&other, manifest.replace("\"epoch\": 14", "\"epoch\": 13")).unwrap();
        change();
        for path in ["run", "run/checkpoints"].map(native) {
            let verified = dir.run(&["verify", &path]);
            let verified = verified.code(i32::from(!why.is_empty()));
            let (out, errors) =
                (text(&verified.get_output().stdout), text(&verified.get_output().stderr));
            let complete = native("run/checkpoints/epoch-13: ok, complete, 3 files");
            assert!(out.contains(&complete), "{out}{errors}");
            let is_said = errors.contains("this epoch is not complete") && errors.contains(why);
            assert_eq!(is_said, !why.is_empty(), "{why}: {out}{errors}");
        }
        // One epoch alone.
        let one = native("run/checkpoints/epoch-13");
        dir.run(&["verify", &one]).quiet();
    }
}

/// Changes a byte of a file's metadata.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(6).position(|found| found == b"bridge").unwrap();
    bytes[at] = b'B';
    fs::write(path, bytes).unwrap();
}

#[cfg(unix)]
#[test]
fn an_epoch_that_is_a_link_is_a_warning() {
    let dir = temp_dir();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/burn_run");
    copy_all(&fixture, &dir.at("run"));
    std::os::unix::fs::symlink("epoch-14", dir.at("run/checkpoints/epoch-15")).unwrap();
    let warned = "epoch-15: a link, which training passes over";
    dir.run("verify run").warns(warned);
    dir.run("verify --strict run").code(1);
}

#[test]
fn a_directory_without_epochs_is_an_error_as_before() {
    let dir = temp_dir();
    let run = dir.at("run");
    training_run(&run);
    // burn's logs alone, and manifests that lead elsewhere or describe something else.
    fs::rename(run.join("checkpoints"), dir.at("away")).unwrap();
    dir.run("inspect run").fails(1, "run: expected model.safetensors").stdout("");
    let epoch = dir.at("away/epoch-9");
    for (manifest, is_epoch) in [
        (r#"{"format":"safetensors-bridge epoch","files":{"../x":{"bytes":1}}}"#, true),
        (r#"{"format":"other","files":{}}"#, false),
        ("[[[[", false),
    ] {
        fs::write(epoch.join("manifest.json"), manifest).unwrap();
        fs::write(epoch.with_file_name("epoch-10").join("manifest.json"), "").unwrap();
        let shown = dir.run("inspect away").code(1).out();
        assert_eq!(shown.contains("it names a file elsewhere"), is_epoch, "{shown}");
    }
}
