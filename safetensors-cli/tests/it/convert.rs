//! `safetensors convert`: the output.

use half::bf16;

use crate::fixtures::*;

/// A misspelt pattern would otherwise look like one that was applied.
#[test]
fn a_pattern_that_matches_no_tensor_is_an_error_with_near_names() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    let ways = "; --ignore-unmatched allows it\n";
    for (options, expected) in [
        ("--drop bias", "--drop 'bias'; `safetensors inspect --flat` shows the names"),
        ("--drop mask --drop embed", "--drop 'embed'; '*embed*' matches embed.weight"),
        ("-f embed.* -f maks", "--filter 'maks'; similar: mask"),
        ("--cast embbed.*=f16", "--cast 'embbed.*'; similar: embed.weight"),
        ("--rename ^embbed x", "--rename '^embbed'; similar: embed.weight"),
        // Each renames the results of the ones before it.
        ("--rename mask a --rename mask b", "--rename 'mask'; `safetensors inspect --flat` shows"),
    ] {
        for output in ["out.safetensors", "out"] {
            let convert = dir.convert(&format!("in.safetensors {output} {options}"));
            convert.fails(1, format!("no tensor matches {expected}")).stderr(contains(ways));
        }
        assert_eq!(names_in(dir.path()), ["in.safetensors"], "{options}");
        dir.convert(&format!("in.safetensors out {options} --ignore-unmatched")).quiet();
        fs::remove_dir_all(dir.at("out")).unwrap();
    }
    let unmatched = "in.safetensors out -f nothing --ignore-unmatched";
    dir.convert(unmatched).fails(1, "no tensor is left to be written");
    let quantised = "warning: --dequantize: no tensor is quantised\n";
    let plan = "in.safetensors out.safetensors --dequantize f32 --dry-run";
    dir.convert(plan).success().stderr(quantised);
    // A tensor that is skipped anyway is a match, and so is one that an earlier name made.
    for options in
        ["-f mask --drop embed.* --cast *.weight=f16", "--rename ^mask$ cover --rename ^cover$ lid"]
    {
        dir.convert(&format!("in.safetensors out {options} --force")).quiet();
    }
}

/// Names with dtypes, sorted by name.
pub(crate) fn content(path: PathBuf) -> Vec<(String, Dtype)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut all: Vec<_> =
        checkpoint.tensors().map(|tensor| (tensor.name().to_owned(), tensor.dtype())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn names(path: PathBuf) -> Vec<String> {
    content(path).into_iter().map(|(name, _)| name).collect()
}

/// A small model of three layers.
pub(crate) fn model(dir: &Path, name: &str) -> PathBuf {
    let weight: Vec<f32> = (0..12).map(|i| i as f32 * 0.37).collect();
    let ids = [1_i64, 2];
    let mut tensors = Vec::new();
    for i in 0..3 {
        tensors.push((format!("m.{i}.weight"), array(&[3, 4], &weight)));
        tensors.push((format!("m.{i}.norm"), array(&[12], &weight)));
    }
    tensors.push(("ids".to_owned(), array(&[2], &ids)));
    let path = dir.at(name);
    save(&path, tensors, &quick().metadata([("format", "pt"), ("by", "me")])).unwrap();
    path
}

#[test]
fn floats_are_cast_and_everything_else_stays() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    let done = dir.convert(
        "a.safetensors b.safetensors --dtype bf16 --cast '*.norm=keep' --cast 'm.2.*=f16'",
    );
    done.success().stdout("b.safetensors: 7 tensors, 232 B\n").stderr("");
    let dtypes = content(dir.at("b.safetensors"));
    let expected = [
        ("ids", Dtype::I64),
        ("m.0.norm", Dtype::F32),
        ("m.0.weight", Dtype::BF16),
        ("m.1.norm", Dtype::F32),
        ("m.1.weight", Dtype::BF16),
        ("m.2.norm", Dtype::F32),
        ("m.2.weight", Dtype::F16),
    ];
    assert_eq!(dtypes, expected.map(|(name, dtype)| (name.to_owned(), dtype)));
    let checkpoint = dir.open("b.safetensors");
    assert_eq!(checkpoint.metadata()["by"], "me");
    let weight =
        checkpoint.tensor("m.0.weight").unwrap().read().unwrap().into_vec::<bf16>().unwrap();
    assert_eq!(weight[5], bf16::from_f32(5.0 * 0.37));
    assert_eq!(names_in(dir.path()), ["a.safetensors", "b.safetensors"]);
}

#[test]
fn shards_are_made_and_merged_again() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    dir.convert("a.safetensors shards --max-shard-size 100").success();
    let files = names_in(&dir.at("shards"));
    assert!(
        files.len() > 3 && files.contains(&"model.safetensors.index.json".to_owned()),
        "{files:?}"
    );
    dir.run("diff --ignore-metadata a.safetensors shards").success();
    dir.convert("shards one.safetensors").success();
    dir.run("diff --ignore-metadata a.safetensors one.safetensors").success();
    // Over its own input, with fewer files than before.
    dir.convert("shards shards --max-shard-size 1GB").success();
    assert_eq!(names_in(&dir.at("shards")), ["model.safetensors"]);
    for wrong in ["0", "0KB", "0.0001 kb", "1KiB", "1e3", "x", "-5"] {
        let refused =
            dir.convert(&["a.safetensors", "shards", &format!("--max-shard-size={wrong}")]).code(2);
        let next =
            if wrong.starts_with('0') { "at least 1 byte" } else { "or a plain number of bytes" };
        refused.stderr(contains(next));
    }
}

#[test]
fn tensors_are_selected_dropped_renamed_and_merged() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    small_file(dir.path(), "b.safetensors");
    let choose = r"a.safetensors b.safetensors c.safetensors -f 'm.*' -f mask --drop '*.norm' --rename '^m\.(\d)' 'layer$1' --prefix x.";
    dir.convert(choose).success();
    assert_eq!(
        names(dir.at("c.safetensors")),
        ["x.layer0.weight", "x.layer1.weight", "x.layer2.weight", "x.mask"]
    );
    // Two tensors with the same name fail for every kind of output, and also in a dry run.
    for output in ["d.safetensors", "d", "d.npz"] {
        for dry_run in [&[][..], &["-n"]] {
            let error = format!(
                "error: {output}: tensor \"same\": duplicate tensor name: m.0.norm of a.safetensors and m.1.norm of \
                 a.safetensors; rename one with --rename, skip one with --drop, or first convert \
                 one input alone, with --prefix\n"
            );
            let args = [&["a.safetensors", output, "--rename", ".*norm", "same"], dry_run].concat();
            let result = dir.convert(&args).code(1).stdout("").get_output().clone();
            let warned = text(&result.stderr)
                .split_inclusive('\n')
                .filter(|line| !line.starts_with("warning"));
            assert_eq!(warned.collect::<String>(), error);
        }
    }
    dir.convert("a.safetensors d.safetensors -f nothing").fails(1, "no tensor matches --filter");
    assert!(!dir.at("d.safetensors").exists());
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    let plan = "\
name            from          dtype       shape   size
──────────────────────────────────────────────────────
x.embed.weight  embed.weight  F32 → BF16  [2, 3]  12 B
x.mask          mask          I64         [2]     16 B

would write out (2 tensors, 28 B, in 2 files): model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
";
    let run = "a.safetensors out --dtype BF16 --prefix x. --max-shard-size 16 -n";
    dir.convert(run).success().stdout(plan).stderr("");
    // If no name changes, the old names are not shown.
    let plan = "\
name          dtype     shape   size
────────────────────────────────────
embed.weight  F32       [2, 3]  24 B
mask          I64 → U8  [2]      2 B

would write out.safetensors (2 tensors, 26 B)
";
    dir.convert("a.safetensors out.safetensors --cast mask=u8 -n").success().stdout(plan);
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
}

#[test]
fn a_plan_compares_names_and_not_their_shortened_forms() {
    let dir = temp_dir();
    // The middle of both names is dropped.
    let name = |middle: &str| format!("{}{middle}{}", "a".repeat(100), "b".repeat(100));
    let tensors = [(name("x"), array(&[1], &[1_u8]))];
    save(dir.at("a.safetensors"), tensors, &quick()).unwrap();
    let from = |args: &[&str]| {
        let output =
            dir.convert(&[&["a.safetensors", "b.safetensors", "-n"], args].concat()).success();
        let shown = text(&output.get_output().stdout).lines().nth(2).unwrap().to_owned();
        shown.matches('…').count()
    };
    assert_eq!(from(&[]), 1);
    assert_eq!(from(&["--rename", "x", "y"]), 2);
}

#[test]
fn the_overflow_option_determines_the_result_of_large_numbers() {
    let dir = temp_dir();
    let large = [1e30_f32, 1.0];
    let tensors = [("w", array(&[2], &large))];
    save(dir.at("a.safetensors"), tensors, &quick()).unwrap();
    let to = |overflow: &str| {
        dir.convert(&format!(
            "a.safetensors b.safetensors --force --dtype f16 --overflow {overflow}"
        ))
    };
    let first = || {
        let checkpoint = dir.open("b.safetensors");
        checkpoint.tensor("w").unwrap().read().unwrap().into_vec::<half::f16>().unwrap()[0]
    };
    to("ieee").success();
    assert_eq!(first(), half::f16::INFINITY);
    to("saturate").success();
    assert_eq!(first(), half::f16::MAX);
    to("error").code(1).stderr(contains("tensor \"w\"").and(contains("does not fit F16")));
    assert_eq!(first(), half::f16::MAX, "the output is as it was");
    assert_eq!(names_in(dir.path()), ["a.safetensors", "b.safetensors"]);
}

#[test]
fn an_input_may_be_a_pipe_or_a_link_and_an_output_a_link() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "a.safetensors");
    let mut piped = safetensors();
    piped.current_dir(dir.path()).args(["convert", "-", "b.safetensors", "--dtype", "f64"]);
    piped.write_stdin(fs::read(&path).unwrap()).assert().quiet();
    assert_eq!(content(dir.at("b.safetensors"))[0].1, Dtype::F64);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("b.safetensors", dir.at("link.safetensors")).unwrap();
        dir.convert("link.safetensors link.safetensors --dtype f16 --force").success();
        assert!(fs::symlink_metadata(dir.at("link.safetensors")).unwrap().is_symlink());
        assert_eq!(content(dir.at("b.safetensors"))[0].1, Dtype::F16);
    }
}

#[test]
fn wrong_kinds_and_wrong_usage() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    let unwritten = "a directory: write that, and convert it with a tool that knows ";
    let unread = "convert it to .safetensors or .npz first, with a tool that knows ";
    for (line, says) in [
        ("a.safetensors a.ONNX", unwritten),
        ("a.safetensors a.bin", unwritten),
        ("a.safetensors a.msgpack", unwritten),
        ("a.safetensors a.keras", unwritten),
        ("a.ONNX b.safetensors", unread),
        ("a.msgpack b.safetensors", unread),
        ("a.keras b.safetensors", unread),
        ("a.safetensors x.index.json", "name the directory"),
        ("a.safetensors -", "OUT cannot be standard output: the layout of a file"),
        ("a.safetensors", "OUT is missing"),
        ("a.safetensors b --rename ( x", "--rename: "),
        ("a.safetensors b --dtype bf17", "unknown dtype \"bf17\"; there are BF16, "),
        (
            "a.safetensors b --cast mask=f17",
            "and 16 more; `safetensors convert --help` lists all; or keep, or quantize",
        ),
        (
            "a.safetensors b.safetensors --max-shard-size 1GB",
            "--max-shard-size, --no-wait, --ranks and --plan need a directory",
        ),
    ] {
        dir.convert(line).fails(2, says);
    }
    for missing in ["none.npy", "none.npz", "none.safetensors", "none.gguf", "none.bin"] {
        let once = contains(missing).count(1).and(starts_with(format!("error: {missing}: ")));
        dir.convert(&[missing, "b.safetensors"]).code(1).stderr(once);
    }
    // Options may be anywhere.
    dir.convert("a.safetensors --dtype BF16 -n b.safetensors").success();
    dir.convert("a.safetensors b.safetensors --cast mask=f4").fails(1, "\"mask\"");
}
