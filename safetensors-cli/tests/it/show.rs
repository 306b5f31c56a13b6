//! `safetensors show`: which values are shown, and how.

use serde_json::json;

use crate::fixtures::*;

fn show(dir: &Path, args: &[&str]) -> String {
    let args: Vec<_> =
        ["show", "model.safetensors"].into_iter().chain(args.iter().copied()).collect();
    let shown = dir.run(&args).quiet();
    text(&shown.get_output().stdout).to_owned()
}

#[test]
fn a_tensor_or_a_slice_of_it_is_shown_as_numpy_prints_it() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let all = "embed.weight  F32  [2, 3]\n[[0. 1. 2.]\n [3. 4. 5.]]\n";
    assert_eq!(show(dir.path(), &["embed.weight"]), all);
    let part = "embed.weight  F32  [2, 2] of [2, 3]\n[[0. 2.]\n [3. 5.]]\n";
    assert_eq!(show(dir.path(), &["embed.weight", "[:, ::2]"]), part);
    let row = "embed.weight  F32  [3] of [2, 3]\n[3. 4. 5.]\n";
    for slice in ["-1", "[-1]", "-1,", "-1, ..."] {
        assert_eq!(show(dir.path(), &["embed.weight", slice]), row);
    }
    let row = "embed.weight  F32  [1, 3] of [2, 3]\n[[3. 4. 5.]]\n";
    assert_eq!(show(dir.path(), &["embed.weight", "-1:"]), row);
    assert_eq!(show(dir.path(), &["mask", "0"]), "mask  I64  [] of [2]\n1\n");
    assert_eq!(show(dir.path(), &["mask", "[5:]"]), "mask  I64  [0] of [2]\n[]\n");
    // Options may follow a slice that begins with a minus.
    assert_eq!(show(dir.path(), &["mask", "-1", "--csv"]), "0\n");
    assert_eq!(show(dir.path(), &["--csv", "mask", "-2:"]), "1\n0\n");
}

#[test]
fn json_and_csv_have_all_values() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&show(dir.path(), args)).unwrap()
    };
    let expected = json!({
        "name": "embed.weight", "dtype": "F32", "shape": [2, 3],
        "values": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    });
    assert_eq!(json(&["embed.weight", "--json"]), expected);
    assert_eq!(json(&["mask", "[1]", "--json"])["values"], json!(0));
    let empty = json(&["embed.weight", "[2:]", "--json"]);
    assert_eq!((&empty["shape"], &empty["values"]), (&json!([0, 3]), &json!([])));
    assert_eq!(show(dir.path(), &["embed.weight", "--csv"]), "0.0,1.0,2.0\n3.0,4.0,5.0\n");
    assert_eq!(show(dir.path(), &["embed.weight", "[2:]", "--csv"]), "");
}

#[test]
fn every_dtype_is_shown() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    // 24 bytes, which are whole elements of each dtype, and are not NaN in any.
    let bytes: Vec<u8> = (0..24).map(|i| if i % 8 == 7 { 0x40 } else { i % 2 }).collect();
    let tensors = Dtype::ALL.iter().map(|&dtype| {
        let shape = vec![24 * 8 / dtype.bits() as usize];
        (dtype.name(), shape, dtype)
    });
    let tensors: Vec<_> = tensors.collect();
    let data = |dtype| if dtype == Dtype::BOOL { [0, 1].repeat(12) } else { bytes.clone() };
    let data: Vec<_> = tensors.iter().map(|(.., dtype)| data(*dtype)).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape, dtype), data)| (*name, TensorView::new(*dtype, shape, data).unwrap()));
    save(&path, views, &quick()).unwrap();
    // Each value in JSON is the one that core converts to.
    for (name, _, dtype) in &tensors {
        let shown: serde_json::Value =
            serde_json::from_str(&show(dir.path(), &[name, "--json"])).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = checkpoint.tensor(name).unwrap();
        let values = shown["values"].as_array().unwrap();
        assert_eq!(values.len() as u64, tensor.element_count(), "{name}");
        if *dtype == Dtype::C64 {
            let parts = bytes.as_chunks().0.iter().map(|&part| f32::from_le_bytes(part));
            let found = values.iter().flat_map(|value| value.as_array().unwrap());
            assert!(found.map(|part| part.to_string().parse::<f32>().unwrap()).eq(parts));
            continue;
        }
        let options = safetensors_core::LoadOptions::new().all_as(Dtype::F64);
        let numbers = tensor.read_with(&options).unwrap().into_vec::<f64>().unwrap();
        for (value, number) in values.iter().zip(numbers) {
            let found = match value {
                serde_json::Value::Bool(value) => f64::from(u8::from(*value)),
                // The text of F32 and narrower floats is the shortest of an F32.
                value if dtype.is_float() && *dtype != Dtype::F64 => {
                    value.to_string().parse::<f32>().unwrap().into()
                }
                value => value.as_f64().unwrap(),
            };
            assert_eq!(found, number, "{name}");
        }
    }
}

#[test]
fn only_the_ends_of_many_values_are_shown_by_default() {
    let dir = temp_dir();
    let values: Vec<u16> = (0..2000).collect();
    let view = array(&[40, 50], &values);
    save(dir.at("model.safetensors"), [("w", view)], &quick()).unwrap();
    let ends = show(dir.path(), &["w"]);
    assert!(ends.contains("\n ...\n [1850 1851 1852 ... 1897 1898 1899]\n"), "{ends}");
    assert_eq!(ends.lines().count(), 8, "{ends}");
    let all = show(dir.path(), &["w", "--all"]);
    let numbers =
        all.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u16>().ok());
    // Behind the name of the dtype, `16`, and the shape.
    assert!(numbers.skip(3).eq(values.iter().copied()), "{all}");
}

/// A tensor of 2⁴⁰ bytes, almost all of them a hole in the file.
#[cfg(target_os = "linux")]
#[test]
fn a_huge_tensor_is_shown_at_once() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let w = ("w".into(), Dtype::U8, vec![1 << 20, 1 << 20]);
    let end = write_hole(&path, [w, ("many".into(), Dtype::F4, vec![2; 22])]);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let data = file.metadata().unwrap().len() - end;
    let write =
        |bytes: &[u8], at| std::os::unix::fs::FileExt::write_all_at(&file, bytes, data + at);
    write(&[1, 2, 3], 0).unwrap();
    write(&[7, 8, 9], (1 << 40) - 3).unwrap();
    let expected = "\
w  U8  [1048576, 1048576]
[[1 2 3 ... 0 0 0]
 [0 0 0 ... 0 0 0]
 [0 0 0 ... 0 0 0]
 ...
 [0 0 0 ... 0 0 0]
 [0 0 0 ... 0 0 0]
 [0 0 0 ... 7 8 9]]
";
    assert_eq!(show(dir.path(), &["w"]), expected);
    assert_eq!(show(dir.path(), &["w", "[-1, -4:]", "--csv"]), "0\n7\n8\n9\n");
    assert_eq!(show(dir.path(), &["w", "[::500000, ::500000]", "--csv"]).lines().count(), 3);
    // The ends of very many dimensions are too many values as well.
    dir.run("show model.safetensors many")
        .fails(1, "tensor \"many\" has too many dimensions to be shown");
    assert!(show(dir.path(), &["many", &"0,".repeat(13)]).ends_with("]]]]]]]]]\n"));
}

#[test]
fn the_error_of_a_slice_marks_its_position() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let show = |args: &[&str]| {
        let args: Vec<_> =
            ["show", "model.safetensors"].into_iter().chain(args.iter().copied()).collect();
        dir.run(&args).stdout("")
    };
    let expected = "error: invalid value '[0:2, x]' for '[SLICE]': expected a position, a range such \
                    as `2:5`, or `...`, found `x` at character 7\n\n    [0:2, x]\n          ^\n";
    show(&["embed.weight", "[0:2, x]"]).code(2).stderr(starts_with(expected));
    show(&["embed.weight", "[::-1]"])
        .fails(2, "a step should be at least 1, found -1 at character 4");
    show(&["embed.weight", "[0, 3]"]).code(1).stderr(
        "error: model.safetensors: tensor \"embed.weight\": slice, character 5: position 3 is out of \
         bounds: dimension 1 has length 3\n",
    );
    show(&["mask", "0, 0"]).code(1).stderr(
        "error: model.safetensors: tensor \"mask\": slice, character 4: the tensor has only 1 \
         dimension\n",
    );
    show(&["embed", "0"]).fails(1, "did you mean embed.weight?");
    show(&["mask", "--json", "--csv"]).fails(2, "cannot be used");
    show(&["mask", "\u{1b}[2J"]).code(2).stderr(predicate::function(is_plain));
    show(&[]).code(2);
}

#[test]
fn a_byte_that_is_no_boolean_is_an_error_that_names_it() {
    let dir = temp_dir();
    let path = dir.at("model.safetensors");
    let header = r#"{"flag":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}"#;
    raw_file(&path, header, 4);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 7;
    fs::write(&path, bytes).unwrap();
    let error = "error: model.safetensors: tensor \"flag\": element 3 of a BOOL tensor should be 0 \
                 or 1, found 7\n";
    dir.run("show model.safetensors flag '[1]'").code(1).stderr(error);
    assert_eq!(show(dir.path(), &["flag", "[0]", "--csv"]), "false\nfalse\n");
}
