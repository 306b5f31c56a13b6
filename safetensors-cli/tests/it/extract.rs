//! `safetensors extract`: its outputs, and its refusals.

use crate::fixtures::*;

#[test]
fn a_tensor_becomes_an_array_of_numpy() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    dir.run("extract model.safetensors mask -o mask.npy")
        .success()
        .stdout("mask.npy: I64 [2], 144 B\n")
        .stderr("");
    let bytes = dir.read("mask.npy");
    assert!(bytes.starts_with(
        b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"
    ));
    assert_eq!(bytes[128..], [1_i64.to_le_bytes(), 0_i64.to_le_bytes()].concat());
    // No other file is left.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    dir.run("extract model.safetensors mask -o -").success().stdout(bytes);
}

#[test]
fn a_slice_becomes_an_array_of_its_own_shape() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let extract = |slice: &str, more: &[&str]| {
        let args = ["extract", "model.safetensors", "embed.weight", slice, "-o"];
        dir.run(&args.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let part = "part.npy: F32 [2, 2], 144 B\n";
    extract("[:, ::2]", &["part.npy"]).success().stdout(part).stderr("");
    let bytes = dir.read("part.npy");
    let header =
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
    assert!(bytes.starts_with(header));
    assert_eq!(bytes[128..], [0.0_f32, 2.0, 3.0, 5.0].map(f32::to_le_bytes).concat());
    // Nothing is said where the data goes to standard output.
    let expected = [4.0_f32, 5.0].map(f32::to_le_bytes).concat();
    extract("-1, 1:", &["-", "--raw"]).success().stdout(expected).stderr("");
    extract("[5:]", &["none", "--raw"]).success().stdout("none: F32 [0, 3], 0 B\n");
    assert_eq!(dir.read("none"), b"");
    extract("[2]", &["x"]).fails(1, "character 2: position 2 is");
    extract("[x]", &["x"]).fails(2, "found `x` at character 2");
    assert!(!dir.at("x").exists());
}

#[test]
fn a_slice_of_packed_elements_needs_whole_bytes() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let view = TensorView::new(Dtype::F4, &[8], &[1, 2, 3, 4]).unwrap();
    save(&path, [("w", view)], &quick()).unwrap();
    let extract = |slice| {
        let args = ["extract", "model.safetensors", "w", slice, "--raw", "-o", "-"];
        dir.run(&args)
    };
    extract("2:6").success().stdout(&[2_u8, 3][..]);
    extract("1:3").fails(1, "tensor \"w\": ");
}

#[test]
fn a_dtype_without_a_numpy_type_is_refused_or_raw() {
    let dir = temp_dir();
    let values = [half::bf16::ONE; 3];
    let view = array(&[3], &values);
    save(dir.at("model.safetensors"), [("w", view)], &quick()).unwrap();
    let error = "tensor \"w\": NumPy has no type for BF16; name a .safetensors";
    dir.run("extract model.safetensors w -o w.npy").fails(1, error);
    assert!(!dir.at("w.npy").exists());
    dir.run("extract model.safetensors w --raw -o w.npy").success();
    let bytes = dir.read("w.npy");
    assert_eq!(bytes, [0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f]);
}

/// The name of the output shows which content a user expects there.
#[test]
fn a_name_of_a_safetensors_file_gets_one() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let extract = |more: &[&str]| {
        let args = ["extract", "model.safetensors", "embed.weight", "-o", "part.safetensors"];
        dir.run(&[&args, more, &["--force"]].concat()).quiet();
        dir.read("part.safetensors")
    };
    let file = extract(&["[:, 1]"]);
    let part = dir.open("part.safetensors");
    let tensor = part.tensor("embed.weight").unwrap();
    assert_eq!((part.len(), tensor.shape()), (1, &[2][..]));
    assert_eq!(tensor.read().unwrap().as_slice::<f32>().unwrap(), [1.0, 4.0]);
    let said = format!("again.safetensors: F32 [2], {} B\n", file.len());
    let args =
        ["extract", "model.safetensors", "embed.weight", "[:, 1]", "-o", "again.safetensors"];
    dir.run(&args).success().stdout(said);
    // Case does not matter, as for `convert`.
    let args = ["extract", "model.safetensors", "embed.weight", "[:, 1]", "-o", "x.SafeTensors"];
    dir.run(&args).success();
    assert_eq!(dir.read("x.SafeTensors"), file);
    // Unless only the bytes are asked for.
    assert_eq!(extract(&["[0, :1]", "--raw"]), 0_f32.to_le_bytes());
}

#[cfg(unix)]
#[test]
fn bytes_do_not_go_to_a_terminal() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for args in [
        &["extract", "model.safetensors", "mask", "-o", "-"][..],
        &["extract", "model.safetensors", "mask", "--raw", "-o", "-"],
    ] {
        let screen = crate::terminal::Terminal::new(24, 120).run(dir.path(), args);
        assert_eq!(screen.code, Some(2), "{screen:?}");
        let hint = "error: the output is binary, and standard output is a terminal; name a file";
        assert!(screen.last.starts_with(hint), "{screen:?}");
    }
}

#[test]
fn a_name_that_is_not_there_and_a_place_that_cannot_be_written() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let names =
        ["a.norm.weight", "a.layers.0.pre_norm.weight", "a.layers.10.norm.weight", "norm.bias"];
    let one = [1_u8];
    let tensors = names.map(|name| (name, array(&[1], &one)));
    save(dir.at("norms.safetensors"), tensors, &quick()).unwrap();
    let many = ["m.x1", "m.x2", "m.x3", "m.x4"].map(|name| (name, array(&[1], &one)));
    save(dir.at("many.safetensors"), many, &quick()).unwrap();
    for (line, says) in [
        (
            "model.safetensors embed -o x",
            "tensor \"embed\": there is no such tensor; did you mean embed.weight?",
        ),
        (
            "norms.safetensors norm.weight -o x",
            "did you mean a.norm.weight, a.layers.10.norm.weight, a.layers.0.pre_norm.weight?\n",
        ),
        ("model.safetensors embd.weight -o x", "such tensor; did you mean embed.weight?\n"),
        ("model.safetensors none -o x", "inspect --flat"),
        // A part that all names have does not distinguish them.
        ("many.safetensors m.x9 -o x", "no such tensor; `safetensors inspect --flat` lists them"),
        ("model.safetensors mask -o .", "error: .: "),
        ("model.safetensors mask -o no/such/x", "error: no/such/x: "),
    ] {
        dir.run(&format!("extract {line}")).fails(1, says);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[cfg(unix)]
#[test]
fn irregular_outputs_are_not_replaced_and_links_are_followed() {
    use std::os::unix::fs::{FileTypeExt, symlink};

    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let at = |name: &str| dir.at(name);
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    symlink("fifo", at("to the fifo")).unwrap();
    symlink("target.npy", at("dangling.npy")).unwrap();
    let extract = |output: &Path| {
        let mut command = safetensors();
        command.arg("extract").arg(&path).args(["mask", "-o"]).arg(output);
        command.assert()
    };
    let refused = || {
        let problem = contains(": expected a regular file, found a special file");
        problem.and(contains("`-o - > FILE` can write to such a file"))
    };
    for special in [at("fifo"), at("to the fifo"), "/dev/null".into()] {
        extract(&special).code(1).stderr(refused());
    }
    assert!(fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    extract(&at("dangling.npy")).success();
    assert!(fs::symlink_metadata(at("dangling.npy")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(at("target.npy")).unwrap().is_file());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
}

/// Also `map` and `plan`, which write files of other kinds.
#[test]
fn no_file_of_the_checkpoint_is_replaced_by_the_output() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    #[cfg(unix)]
    std::os::unix::fs::symlink("model.safetensors", dir.at("link.html")).unwrap();
    let before = fs::read(&path).unwrap();
    let other = if cfg!(unix) { "link.html" } else { "./model.safetensors" };
    for output in ["model.safetensors", other] {
        for args in [
            &["extract", "model.safetensors", "mask", "--raw", "--force"][..],
            &["map", "model.safetensors"],
            &["plan", "model.safetensors", "--world-size", "1"],
        ] {
            if args[0] == "map" && output != "link.html" {
                continue;
            }
            let expected = format!("error: {output} is a file of the checkpoint that is read");
            dir.run(&[args, &["-o", output]].concat())
                .code(2)
                .stdout("")
                .stderr(starts_with(expected));
            assert_eq!(fs::read(&path).unwrap(), before, "{args:?}");
        }
    }
}

#[test]
fn a_name_of_another_kind_of_file_is_refused() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for name in
        ["q.safetensor", "q.txt", "q.npz", "q.pt", "q.json", "q.h5", "q.safetensors ", "q.npy "]
    {
        let args = ["extract", "model.safetensors", "mask", "-o", name];
        dir.run(&args).fails(2, "FILE ends in .npy or .safetensors; --raw writes the bytes");
        assert!(!dir.at(name).exists(), "{name}");
        dir.run(&[&args[..], &["--raw"]].concat()).quiet();
    }
    for name in ["q", "layer.0", "q.fp8", "r.NPY"] {
        dir.run(&["extract", "model.safetensors", "mask", "-o", name]).quiet();
        assert!(dir.read(name).starts_with(b"\x93NUMPY"), "{name}");
    }
}

#[test]
fn codes_that_cannot_be_read_are_written_only_by_option() {
    let dir = temp_dir();
    let codes = TensorView::new(Dtype::I8, &[2, 2], &[1, 2, 3, 4]).unwrap();
    let scales = array(&[2, 1], &[0.5_f32, 1.0]);
    let norm = array(&[2], &[1.0_f32, 2.0]);
    let tensors = [("w", codes), ("w_zero", scales), ("norm", norm)];
    save(dir.at("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
    let extract = |name: &str, more: &[&str]| {
        let args = ["extract", "in.safetensors", name, "-o", "out.npy"];
        dir.run(&[&args, more].concat())
    };
    let refused = contains("\"w_zero\"").and(contains("--raw"));
    extract("w", &[]).failure().stderr(refused);
    assert!(!dir.at("out.npy").exists());
    extract("norm", &[]).success();
    extract("w", &["--raw", "--force"]).success();
    assert_eq!(dir.read("out.npy"), [1, 2, 3, 4]);
}
