//! Directories of PyTorch's trainers, wherever a command reads a checkpoint. The fixtures are those
//! of `safetensors-formats`.

use crate::fixtures::*;
use crate::other_formats::fixture;

fn output(args: &[&str]) -> String {
    let dir = temp_dir();
    text(&dir.run(args).quiet().get_output().stdout).to_owned()
}

#[test]
fn a_directory_is_shown_as_whole_tensors_and_its_other_values_by_name() {
    let path = fixture("training/values");
    let path = path.to_str().unwrap();
    let shown = output(&["inspect", path]);
    assert!(shown.contains("[6, 2]") && shown.contains("PyTorch DCP"), "{shown}");
    assert!(shown.contains("skipped: 7 values: \"big\", \"list\""), "{shown}");
    let shown = output(&["inspect", "--json", path]);
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let notes = json["files"][0]["notes"].to_string();
    assert!(notes.contains(r#"skipped: 7 values: \"big\", \"list\""#), "{notes}");
    assert_eq!(json["files"][0]["format"], "PyTorch DCP");
}

#[test]
fn every_command_reads_a_directory() {
    let (dir, path) = (temp_dir(), fixture("training/grid_rows_columns"));
    let path = path.to_str().unwrap();
    dir.run(&["convert", path, "model", "--max-shard-size", "100"]).success();
    let expected = Checkpoint::open(fixture("training/grid_rows_columns.safetensors")).unwrap();
    let converted = dir.open("model");
    assert!(converted.files().len() == 2 && converted.len() == expected.len());
    dir.run(&["diff", path, "model"]).success();
    let verified = output(&["verify", "--digests", path]);
    assert!(verified.contains("PyTorch DCP: its structure") && verified.contains("checksums"));
    for args in [&["stats", path][..], &["show", path, "w"], &["extract", path, "w", "-o", "w.npy"]]
    {
        dir.run(args).success();
    }
}

#[test]
fn the_settings_of_an_optimizer_travel() {
    let dir = temp_dir();
    let path = fixture("training/settings");
    let args = ["convert", path.to_str().unwrap(), "out.safetensors"];
    let drops = "tensor \"holder\": a tensor inside \"argparse.Namespace\", which is not read; save \
                 its state_dict() instead; --drop skips it";
    dir.run(&args).fails(1, drops);
    dir.run(&[&args[..], &["--drop", "holder"]].concat()).success();
    let saved = dir.open("out.safetensors");
    assert!(saved.metadata()["optim.param_groups"].starts_with(r#"[{"betas":[0.9,0.999],"#));
}

#[test]
fn values_that_a_conversion_skips_are_a_warning() {
    let (dir, path) = (temp_dir(), fixture("training/values"));
    let warning = format!("warning: {}: skipped: 7 values: \"big\", ", path.display());
    for options in [&["-n"][..], &[]] {
        let args = [&["convert", path.to_str().unwrap(), "out.safetensors"], options].concat();
        dir.run(&args).warns(warning.as_str());
    }
}

#[test]
fn an_output_above_the_steps_of_a_trainer_is_refused() {
    let dir = temp_dir();
    fs::create_dir_all(dir.at("run/global_step2")).unwrap();
    dir.write("run/latest", "global_step2");
    small_file(dir.path(), "in.safetensors");
    dir.run("convert in.safetensors run --force").fails(1, "which the output would hide");
    fs::create_dir(dir.at("megatron")).unwrap();
    dir.write("megatron/latest_checkpointed_iteration.txt", "12\n");
    dir.run("convert in.safetensors megatron").code(1);
    // Other files, links and directories of the name say nothing.
    fs::create_dir_all(dir.at("a/latest")).unwrap();
    fs::create_dir_all(dir.at("b/run-12")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("run-12", dir.at("b/latest")).unwrap();
    fs::create_dir(dir.at("c")).unwrap();
    for text in ["", ".", "..", "12", "/", "2026-11-26: loss 1.5"] {
        dir.write("c/latest", text);
        dir.run("convert in.safetensors c").success();
        fs::remove_file(dir.at("c/model.safetensors")).unwrap();
    }
    for out in ["a", "b"] {
        dir.run(&["convert", "in.safetensors", out]).success();
    }
}

#[test]
fn a_directory_that_is_not_complete_is_refused_before_anything_is_written() {
    let dir = temp_dir();
    let broken = dir.at("broken");
    copy_all(&fixture("training/grid_rows_columns"), &broken);
    // A directory with a model next to the files would open as the model.
    small_file(dir.path(), "in.safetensors");
    dir.run("convert in.safetensors broken --force").fails(1, "which the output would hide");
    assert!(!broken.join("model.safetensors").exists());
    // A file that nothing lists is warned of. The directory is found by the one above it.
    fs::copy(broken.join("__1_0.distcp"), broken.join("__9_0.distcp")).unwrap();
    let stray = "__9_0.distcp: is next to the index, which does not name it";
    dir.run("verify broken").warns(stray);
    dir.run("verify --strict broken").code(1);
    fs::remove_file(dir.at("in.safetensors")).unwrap();
    let hint = "expected one checkpoint, found it one level down: \"broken\"";
    dir.run("inspect .").fails(1, hint);
    fs::remove_file(broken.join("__2_0.distcp")).unwrap();
    let missing = "the checkpoint is not complete: \"__2_0.distcp\" is missing";
    for args in [&["convert", "broken", "model"][..], &["verify", "broken"], &["inspect", "broken"]]
    {
        dir.run(args).fails(1, missing);
    }
    assert!(!dir.at("model").exists());
    let part = "broken/__0_0.distcp";
    let says = "a part of a checkpoint that is divided among files; open the directory";
    dir.run(&["inspect", part]).fails(1, says);
}
