//! Commands that show values: numbers of quantised weights, or with `--stored` codes and scales.

use safetensors_testing::quantized::Quantized;

use crate::fixtures::*;

/// The weight `l.weight`, which is 0.5, 0.5, 1, 1: the codes of 1, 1, 2, 2, and their scale; and the
/// same weight in numbers.
fn weight(dir: &Path) {
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let scale = [0.5_f32];
    let tensors = [("l.weight", codes), ("l.weight_scale", array(&[1, 1], &scale))];
    save(dir.at("codes.safetensors"), tensors, &quick()).unwrap();
    let numbers = [0.5_f32, 0.5, 1.0, 1.0];
    let numbers = [("l.weight", array(&[2, 2], &numbers))];
    save(dir.at("numbers.safetensors"), numbers, &quick()).unwrap();
}

#[test]
fn every_command_shows_numbers_and_on_request_codes() {
    let dir = temp_dir();
    weight(dir.path());
    for (args, numbers, codes) in [
        ("show codes.safetensors l.weight --json", "[0.5, 0.5]", "[1.0, 1.0]"),
        (
            "stats codes.safetensors --bins 0",
            "\nl.weight  F32    [2, 2]  0.5",
            "\nl.weight        F8_E4M3",
        ),
        (
            "diff codes.safetensors numbers.safetensors",
            "1 tensor equal\n",
            "1 different, 1 only in A",
        ),
    ] {
        assert!(dir.run(args).out().contains(numbers), "{args}");
        let stored = dir.run(&format!("{args} --stored")).out();
        assert!(stored.contains(codes) && !stored.contains(numbers), "{stored}");
    }
    let extracted = |options: &str| {
        dir.run(&format!("extract codes.safetensors l.weight -o o.safetensors --force {options}"));
        let tensor = dir.open("o.safetensors");
        let tensor = tensor.tensor("l.weight").unwrap();
        (tensor.dtype(), tensor.read().unwrap().bytes().to_vec())
    };
    let numbers: Vec<u8> =
        [0.5_f32, 0.5, 1.0, 1.0].into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(extracted(""), (Dtype::F32, numbers));
    assert_eq!(extracted("--stored"), (Dtype::F8_E4M3, vec![0x38, 0x38, 0x40, 0x40]));
}

#[test]
fn a_pattern_that_matches_only_scales_suggests_stored() {
    let dir = temp_dir();
    weight(dir.path());
    let error = "error: codes.safetensors: --filter '*_scale' matches only codes and scales, which \
                 become numbers under the names of weights: l.weight; --stored takes them as \
                 stored; --ignore-unmatched allows it\n";
    dir.run("stats codes.safetensors -f *_scale").code(1).stdout("").stderr(error);
    dir.run("stats codes.safetensors -f *_scale -f *.weight").code(1).stdout("").stderr(error);
    dir.run("stats codes.safetensors -f *_scale --ignore-unmatched").shows("no tensors\n");
    dir.run("stats codes.safetensors -f *_scale --stored").shows("\nl.weight_scale  F32 ");
    // Names of nothing are another error, and a plain checkpoint has neither codes nor scales.
    dir.run("stats codes.safetensors -f *_scales").fails(1, "no tensor matches --filter");
    dir.run("stats numbers.safetensors -f *_scale").fails(1, "no tensor matches --filter");
    dir.run("stats numbers.safetensors --stored").quiet();
}

#[cfg(unix)]
#[test]
fn browse_has_the_statistics_of_numbers_and_on_request_of_codes() {
    let dir = temp_dir();
    weight(dir.path());
    for (args, max) in [
        (&["browse", "codes.safetensors"][..], "max         1\n"),
        (&["browse", "codes.safetensors", "--stored"], "max         2\n"),
    ] {
        let mut session = crate::pty::Session::start(dir.path(), args, (40, 100));
        session.wait_for("q quit");
        // The codes are a weight of four parameters, and the scale has none.
        session.wait_for("parameters  4");
        session.send("/l.weight\r");
        session.wait_for("Esc end search");
        session.send("s");
        session.wait_for(max);
        session.send("q");
        assert!(session.end().success());
    }
}

#[test]
fn finite_checks_numbers_and_every_float_that_is_no_code() {
    let dir = temp_dir();
    // Of the codes, 0x7f is NaN.
    for (codes, scale, input, faults) in [
        ([0x38, 0x38, 0x40, 0x40], 0.5, 1.0, &[][..]),
        ([0x38, 0x38, 0x40, 0x40], 0.5, f32::NAN, &["l.input_scale"]),
        ([0x38, 0x7f, 0x40, 0x40], 0.5, 1.0, &["l.weight"]),
        ([0x38, 0x38, 0x40, 0x40], f32::INFINITY, 1.0, &["l.weight", "l.weight_scale"]),
    ] {
        let (scale, input) = ([scale], [input]);
        let tensors = [
            ("l.weight", TensorView::new(Dtype::F8_E4M3, &[2, 2], &codes).unwrap()),
            ("l.weight_scale", array(&[1, 1], &scale)),
            ("l.input_scale", array(&[1], &input)),
        ];
        save(dir.at("x.safetensors"), tensors, &quick()).unwrap();
        let json = dir.run("verify --finite --json x.safetensors").json();
        let found = json["results"][0]["faults"].as_array().unwrap().iter();
        let mut found: Vec<_> = found.map(|fault| fault["tensor"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, faults, "{json:#}");
    }
}

/// A model has one number of parameters, in whatever way its weights are stored.
#[test]
fn every_command_counts_the_parameters_of_codes_alike() {
    let dir = temp_dir();
    for name in ["gptq-v1-4bits", "bnb-nf4"] {
        let model = Quantized::named(name).model();
        let model = model.to_str().unwrap();
        let counted = |command: &str| {
            let said = dir.run(&[command.split(' ').collect(), vec![model, model]].concat()).out();
            let last = said.trim_end().lines().last().unwrap().to_owned();
            let count = last.split(" parameters").next().unwrap().rsplit(' ').next().unwrap();
            count.to_owned()
        };
        let expected = counted("inspect");
        for command in ["digest", "stats", "stats --stored"] {
            assert_eq!(counted(command), expected, "{name}: {command}");
        }
        let one = expected.replace(',', "").parse::<u64>().unwrap() / 2;
        let verified = dir.run(&["verify", model]).out().replace(',', "");
        assert!(verified.contains(&format!(" {one} parameters")), "{verified}");
    }
}
