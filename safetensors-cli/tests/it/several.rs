//! Several inputs: `inspect` and `digest` of several PATHs, and of all below a directory.

use serde_json::{Value, json};

use crate::fixtures::*;

/// Two files and a checkpoint of shards in a directory each, and a file that is none.
fn inputs(dir: &Path) {
    small_file(dir, "a.safetensors");
    fs::create_dir_all(dir.at("deep/b")).unwrap();
    sharded(&dir.at("deep/b"));
    small_file(&dir.at("deep"), "c.safetensors");
    dir.write("bad.safetensors", b"bad");
}

const BAD: &str = "bad.safetensors: too short for a safetensors file: expected at least 8 bytes, \
                   found 3";

fn document(dir: &Path, args: &[&str], code: i32) -> Value {
    dir.run(args).code(code).stderr("").json()
}

#[test]
fn each_has_a_heading_and_a_last_line_sums_up() {
    let dir = temp_dir();
    inputs(dir.path());
    let expected = "\
a.safetensors:
2d0408b485dd77b108c27fcd95d1fea5  embed.weight
137ec3075546cf034a4fe11e9c4a1079  mask
sha256:f4eade7ce7f15bfd58452485aa93725843b4ef7d95007b82418c081b0199ed1a  (all data)

deep/b:
4533ce61c4655ba3c3e077b25dd1d769  a
26121f4bc95d869c5e03b39ffd128642  b
sha256:b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37  model-00001-of-00002.safetensors
sha256:047dbf5366372631ba7e3e02520e651446b899c96c4b64663bac378a298a7bf7  model-00002-of-00002.safetensors

2 inputs: 2 shown; 4 tensors, 13 parameters, 54 B
";
    dir.run("digest a.safetensors deep/b").success().stdout(expected).stderr("");
    let shown = dir.run("inspect -d9 deep/b a.safetensors").quiet().out();
    let one = |path| dir.run(&["inspect", path]).out();
    let expected = format!(
        "deep/b:\n{}\na.safetensors:\n{}\n2 inputs: 2 shown; 4 tensors, 13 parameters, 54 B\n",
        one("deep/b"),
        one("a.safetensors")
    );
    assert_eq!(shown, expected);
}

#[test]
fn one_that_fails_does_not_stop_the_others() {
    let dir = temp_dir();
    inputs(dir.path());
    for command in ["inspect", "digest"] {
        let in_full = if command == "inspect" { "inspect --sort name" } else { command };
        let args = format!("{in_full} bad.safetensors a.safetensors missing deep/b");
        let output = dir.run(&*args).code(1).get_output().clone();
        let (shown, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(shown.starts_with("a.safetensors:\n") && shown.contains("\ndeep/b:\n"), "{shown}");
        assert!(
            shown.ends_with("\n4 inputs: 2 shown, 2 not; 4 tensors, 13 parameters, 54 B\n"),
            "{shown}"
        );
        let errors: Vec<_> = errors.lines().collect();
        assert_eq!(errors[0], format!("error: {BAD}"));
        assert!(errors.len() == 2 && errors[1].starts_with("error: missing: "), "{errors:?}");
        // None at all.
        dir.run(&[command, "bad.safetensors", "bad.safetensors"])
            .code(1)
            .stdout("2 inputs: 0 shown, 2 not; 0 tensors, 0 parameters, 0 B\n")
            .stderr(format!("error: {BAD}\nerror: {BAD}\n"));
    }
    // A filter that matches in one of them only.
    let output = dir.run("inspect -d9 -f mask deep/b a.safetensors").code(1);
    let output = output.get_output();
    assert!(text(&output.stdout).starts_with("a.safetensors:\n"), "{output:?}");
    assert!(text(&output.stderr).contains("no tensor matches --filter"), "{output:?}");
}

#[test]
fn json_of_several_paths_has_the_documents_of_single_paths() {
    let dir = temp_dir();
    inputs(dir.path());
    for command in ["inspect", "digest"] {
        let one = |path| document(dir.path(), &[command, "--json", path], 0);
        let args = [command, "--json", "a.safetensors", "bad.safetensors", "deep/b"];
        let all = document(dir.path(), &args, 1);
        let expected = json!({
            "results": [
                { "path": "a.safetensors", "error": null, "checkpoint": one("a.safetensors") },
                { "path": "bad.safetensors", "error": BAD, "checkpoint": null },
                { "path": "deep/b", "error": null, "checkpoint": one("deep/b") },
            ],
            "shown": 2,
            "failed": 1,
            "total": { "tensors": 4, "parameters": 13, "bytes": 54 },
        });
        assert_eq!(all, expected);
        // It is laid out for people, too.
        let shown = dir.run(&args).code(1).out();
        let start = "{\n  \"results\": [\n    {\n      \"path\": \"a.safetensors\",\n";
        assert!(
            shown.starts_with(start) && shown.ends_with("\n    \"bytes\": 54\n  }\n}\n"),
            "{shown}"
        );
    }
}

#[test]
fn recursive_takes_every_checkpoint_below_a_directory() {
    let dir = temp_dir();
    inputs(dir.path());
    let all = document(dir.path(), &["inspect", "-r", "--json", "."], 1);
    let paths = all["results"].as_array().unwrap().iter().map(|result| &result["path"]);
    let expected = [
        "./a.safetensors",
        "./bad.safetensors",
        "./deep/b/model.safetensors.index.json",
        "./deep/c.safetensors",
    ];
    assert_eq!(paths.collect::<Vec<_>>(), expected.map(native).each_ref());
    assert_eq!((&all["shown"], &all["failed"]), (&json!(3), &json!(1)));
    // The form follows from the arguments, however many there are.
    let one = document(dir.path(), &["inspect", "-r", "--json", "a.safetensors"], 0);
    assert_eq!(one["results"].as_array().unwrap().len(), 1);
    // An empty directory, and shards without their index, are errors.
    fs::create_dir(dir.at("empty")).unwrap();
    let error = "error: empty: no *.safetensors file or index in this directory or below it\n";
    dir.run("digest -r empty")
        .code(1)
        .stdout("1 input: 0 shown, 1 not; 0 tensors, 0 parameters, 0 B\n")
        .stderr(error);
    fs::remove_file(dir.at("deep/b/model.safetensors.index.json")).unwrap();
    dir.run("inspect -r deep/b").code(1).stderr(matches(
        r"^error: deep/b[/\\]model.safetensors.index.json: missing: .*; 2 of 2 are there\n$",
    ));
}

#[test]
fn the_error_about_several_checkpoints_names_the_option() {
    let dir = temp_dir();
    for i in 0..30 {
        fs::create_dir(dir.at(format!("m{i:02}"))).unwrap();
        small_file(&dir.at(format!("m{i:02}")), "model.safetensors");
    }
    dir.run("metadata get .").fails(1, "\"m07\" and 22 more\n").stdout("");
    let option = " and 22 more; name one of them, or take all with --recursive\n";
    dir.run("inspect .").fails(1, option).stdout("");
    let all = "\n30 inputs: 30 shown; 60 tensors, 240 parameters, 1.2 kB\n";
    dir.run("inspect -r .").shows(all);
}

#[test]
fn digests_of_several_files_are_recorded() {
    let dir = temp_dir();
    inputs(dir.path());
    let args = ["digest", "--record", "a.safetensors", "bad.safetensors", &native("deep/b")];
    dir.run(&args)
        .code(1)
        .stdout(native(
            "a.safetensors: 2 digests recorded\n\
             deep/b/model-00001-of-00002.safetensors: 1 digest recorded\n\
             deep/b/model-00002-of-00002.safetensors: 1 digest recorded\n",
        ))
        .stderr(format!("error: {BAD}\n"));
    dir.run("verify --digests a.safetensors deep/b").quiet();
    // Standard input is refused before anything is recorded.
    let before = dir.read("deep/c.safetensors");
    dir.run("digest --record deep/c.safetensors -").code(2).stdout("");
    assert_eq!(dir.read("deep/c.safetensors"), before);
}

#[test]
fn standard_input_is_one_of_several_and_there_once() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "a.safetensors");
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["digest", "-", "a.safetensors"]);
    let output = command.write_stdin(fs::read(path).unwrap()).output().unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.starts_with("standard input:\n"), "{output:?}");
    dir.run("digest - -").fails(2, "standard input can be read only once").stdout("");
}

/// The command that has always taken several.
#[test]
fn a_quiet_verification_prints_errors_and_warnings_only() {
    let dir = temp_dir();
    inputs(dir.path());
    let verify = |args: &[&str]| dir.run(&[&["verify", "-q"], args].concat());
    verify(&["a.safetensors", "deep"]).success().stdout("").stderr("");
    verify(&["bad.safetensors", "deep"]).code(1).stdout("").stderr(format!("error: {BAD}\n"));
    let warned = verify(&["a.safetensors", "--digests"]).success().stdout("");
    let warnings = warned.err();
    assert!(warnings.starts_with("warning: ") && warnings.lines().count() == 1, "{warnings}");
    verify(&["a.safetensors", "--json"]).code(2).stdout("");
}
