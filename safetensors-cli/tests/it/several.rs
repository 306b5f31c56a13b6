//! Several inputs: `inspect` and `digest` of several PATHs, and of all below a directory.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::fixtures::*;

/// Two files and a checkpoint of shards in a directory each, and a file that is none.
fn inputs(dir: &Path) {
    small_file(dir, "a.safetensors");
    fs::create_dir_all(dir.join("deep/b")).unwrap();
    sharded(&dir.join("deep/b"));
    small_file(&dir.join("deep"), "c.safetensors");
    fs::write(dir.join("bad.safetensors"), b"bad").unwrap();
}

const BAD: &str = "bad.safetensors: expected at least 8 bytes for the header length, found 3";

fn document(dir: &Path, args: &[&str], code: i32) -> Value {
    let output = run_in(dir, args).code(code).stderr("").get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
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
    run_in(dir.path(), "digest a.safetensors deep/b").success().stdout(expected).stderr("");
    let shown = run_in(dir.path(), "inspect deep/b a.safetensors").success().stderr("").out();
    let one = |path| text(&run_in(dir.path(), &["inspect", path]).get_output().stdout).to_owned();
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
        let args = [command, "bad.safetensors", "a.safetensors", "missing", "deep/b"];
        let output = run_in(dir.path(), &args).code(1).get_output().clone();
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
        run_in(dir.path(), &[command, "bad.safetensors", "bad.safetensors"])
            .code(1)
            .stdout("2 inputs: 0 shown, 2 not; 0 tensors, 0 parameters, 0 B\n")
            .stderr(format!("error: {BAD}\nerror: {BAD}\n"));
    }
    // A filter that matches in one of them only.
    let output = run_in(dir.path(), "inspect -f mask deep/b a.safetensors").code(1);
    let output = output.get_output();
    assert!(text(&output.stdout).starts_with("a.safetensors:\n"), "{output:?}");
    assert!(text(&output.stderr).contains("no tensor matches --filter"), "{output:?}");
}

#[test]
fn json_stays_one_document_that_holds_those_of_single_paths() {
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
    }
}

/// The document of several is laid out for people, too.
#[test]
fn json_of_several_is_indented() {
    let dir = temp_dir();
    fs::write(dir.path().join("bad.safetensors"), b"bad").unwrap();
    raw_file(&dir.path().join("none.safetensors"), "{}", 0);
    let expected = format!(
        r#"{{
  "results": [
    {{
      "path": "bad.safetensors",
      "error": "{BAD}",
      "checkpoint": null
    }},
    {{
      "path": "none.safetensors",
      "error": null,
      "checkpoint": {{
        "tensors": [],
        "files": [
          {{
            "path": "none.safetensors",
            "data_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
          }}
        ]
      }}
    }}
  ],
  "shown": 1,
  "failed": 1,
  "total": {{
    "tensors": 0,
    "parameters": 0,
    "bytes": 0
  }}
}}
"#
    );
    let args = ["digest", "--json", "bad.safetensors", "none.safetensors"];
    run_in(dir.path(), &args).code(1).stdout(expected).stderr("");
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
    fs::create_dir(dir.path().join("empty")).unwrap();
    let error = "error: empty: no *.safetensors file or index in this directory or below it\n";
    run_in(dir.path(), "digest -r empty")
        .code(1)
        .stdout("1 input: 0 shown, 1 not; 0 tensors, 0 parameters, 0 B\n")
        .stderr(error);
    fs::remove_file(dir.path().join("deep/b/model.safetensors.index.json")).unwrap();
    run_in(dir.path(), "inspect -r deep/b").code(1).stderr(matches(
        r"^error: deep/b[/\\]model.safetensors.index.json: missing: .*; 2 of 2 are there\n$",
    ));
}

#[test]
fn the_error_about_several_checkpoints_names_the_option() {
    let dir = temp_dir();
    for i in 0..30 {
        fs::create_dir(dir.path().join(format!("m{i:02}"))).unwrap();
        small_file(&dir.path().join(format!("m{i:02}")), "model.safetensors");
    }
    run_in(dir.path(), "metadata get .").fails(1, "\"m07\" and 22 more\n").stdout("");
    let option = " and 22 more; name one of them, or take all with --recursive\n";
    run_in(dir.path(), "inspect .").fails(1, option).stdout("");
    let all = "\n30 inputs: 30 shown; 60 tensors, 240 parameters, 1.2 kB\n";
    run_in(dir.path(), "inspect -r .").shows(all);
}

#[test]
fn digests_of_several_files_are_recorded() {
    let dir = temp_dir();
    inputs(dir.path());
    let args = ["digest", "--record", "a.safetensors", "bad.safetensors", &native("deep/b")];
    run_in(dir.path(), &args)
        .code(1)
        .stdout(native(
            "a.safetensors: 2 digests recorded\n\
             deep/b/model-00001-of-00002.safetensors: 1 digest recorded\n\
             deep/b/model-00002-of-00002.safetensors: 1 digest recorded\n",
        ))
        .stderr(format!("error: {BAD}\n"));
    run_in(dir.path(), "verify --digests a.safetensors deep/b").success().stderr("");
    // Standard input is refused before anything is recorded.
    let before = fs::read(dir.path().join("deep/c.safetensors")).unwrap();
    run_in(dir.path(), "digest --record deep/c.safetensors -").code(2).stdout("");
    assert_eq!(fs::read(dir.path().join("deep/c.safetensors")).unwrap(), before);
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
    let twice = predicates::str::contains("standard input can be read only once");
    run_in(dir.path(), "digest - -").code(2).stdout("").stderr(twice);
}

/// The command that has always taken several.
#[test]
fn a_quiet_verification_prints_errors_and_warnings_only() {
    let dir = temp_dir();
    inputs(dir.path());
    let verify = |args: &[&str]| run_in(dir.path(), &[&["verify", "-q"], args].concat());
    verify(&["a.safetensors", "deep"]).success().stdout("").stderr("");
    verify(&["bad.safetensors", "deep"]).code(1).stdout("").stderr(format!("error: {BAD}\n"));
    let warned = verify(&["a.safetensors", "--digests"]).success().stdout("");
    let warnings = text(&warned.get_output().stderr).to_owned();
    assert!(warnings.starts_with("warning: ") && warnings.lines().count() == 1, "{warnings}");
    verify(&["a.safetensors", "--json"]).code(2).stdout("");
}
