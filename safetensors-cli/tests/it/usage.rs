//! Help, version, and messages about wrong usage.

use crate::fixtures::*;

#[test]
fn help_and_version_are_printed() {
    for args in [&["--help"][..], &["verify", "--help"], &["verify", "-h"], &["help", "inspect"]] {
        let help = contains("Examples:").and(contains("Exit codes:"));
        safetensors().args(args).assert().success().stdout(help).stderr("");
    }
}

/// `-V` for scripts that compare versions, `--version` for reports of errors.
#[test]
fn the_version_names_the_target_and_the_features() {
    let version = format!("safetensors {}\n", env!("CARGO_PKG_VERSION"));
    safetensors().arg("-V").assert().success().stdout(version.clone()).stderr("");
    let of_build = format!(
        "^{version}target: [a-z0-9_]+(-[a-z0-9_.]+)+\nfeatures: (none|[a-z0-9-]+(, [a-z0-9-]+)*)\n$"
    );
    safetensors().arg("--version").assert().success().stdout(matches(&of_build)).stderr("");
    let target = contains(std::env::consts::ARCH);
    safetensors().arg("--version").assert().success().stdout(target);
}

#[test]
fn wrong_usage_exits_2_with_usage() {
    for args in [&["verify"][..], &["verify", "--no-such-option", "x"]] {
        let usage = contains("safetensors verify");
        safetensors().args(args).assert().code(2).stdout("").stderr(usage);
    }
    safetensors().args(["verify", ""]).assert().fails(2, "<PATH>...");
    safetensors().arg("no-such-command").assert().code(2).stdout("");
    safetensors().assert().fails(2, "Usage: safetensors");
}

#[test]
fn the_error_of_an_integer_option_has_its_range() {
    for (args, range) in [
        (&["inspect", "a", "--depth", "8k"][..], "from 1 on"),
        (&["inspect", "a", "--depth", "0"], "from 1 on"),
        (&["inspect", "a", "--top", "1.5"], "from 1 to 4294967295"),
        (&["stats", "a", "--bins", "257"], "from 0 to 256"),
        (&["memory", "a", "--length", "8k"], "from 0 on"),
        (&["memory", "a", "--length", "99999999999999999999"], "from 0 on"),
        (&["manifest", "a", "--chunk", "0"], "from 1 on"),
        (&["delta", "follow", "a", "b", "--until", "-"], "from 0 on"),
        (&["download", "a/b", "--max-workers", "0"], "from 1 to 65535"),
        (&["plan", "a", "--world-size", "2k"], "from 1 to 1048576"),
        (&["convert", "a", "b", "--ranks", "2k"], "from 1 to 1048576"),
    ] {
        let problem = format!(": expected a whole number {range}\n");
        safetensors().args(args).assert().code(2).stdout("").stderr(contains(problem));
    }
}

#[test]
fn commands_that_people_expect_get_a_hint() {
    for (typed, hints) in [
        ("merge", &["`safetensors convert IN... OUT` puts files and shards together"][..]),
        ("split", &["`safetensors convert IN OUT --max-shard-size SIZE` splits into shards"]),
        ("LS", &["`safetensors inspect` shows what is in a file"]),
        (
            "cat",
            &[
                "`safetensors inspect` shows what is in a file",
                "`safetensors extract` writes the values of a tensor",
            ],
        ),
        // Clap's own.
        ("mapp", &["a similar subcommand exists: 'map'"]),
    ] {
        let hints: String = hints.iter().map(|hint| format!("  tip: {hint}\n")).collect();
        let expected = format!(
            "error: unrecognized subcommand '{typed}'\n\n{hints}\n\
             Usage: safetensors [OPTIONS] <COMMAND>\n\nFor more information, try '--help'.\n"
        );
        safetensors().args([typed, "a", "b"]).assert().code(2).stdout("").stderr(expected);
    }
}

#[test]
fn a_file_instead_of_a_command_gets_a_hint() {
    let dir = temp_dir();
    small_file(dir.path(), "model");
    for (args, meant) in [
        (&["model"][..], "inspect FILE"),
        (&["missing.safetensors", "b.safetensors"], "inspect FILE"),
        (&["hf://owner/name"], "inspect FILE"),
        (&["-"], "inspect FILE"),
        (&["metadata", "model"], "metadata get FILE"),
        (&["metadata", "missing.safetensors"], "metadata get FILE"),
        (&["metadata", "modelspec", "model"], "metadata modelspec validate FILE"),
        (&["cache", "models/"], "cache list"),
    ] {
        let said = dir.run(args).code(2).stdout("").err();
        let hint = format!("\n  tip: did you mean `safetensors {meant}`?\n\nUsage: ");
        assert!(said.contains(&hint), "{said}");
    }
    // A word is a command that does not exist.
    dir.run("mapp").fails(2, "subcommand exists");
}

/// The kinds of PATH are in one line, also in the short help.
#[test]
fn the_help_of_each_path_lists_its_kinds() {
    for command in ["inspect", "browse", "verify", "show", "stats", "diff", "plan", "digest", "map"]
    {
        let help = safetensors().args([command, "-h"]).assert().success().out();
        let (_, paths) = help.split_once("\nArguments:\n").unwrap();
        let paths = paths.split("\n\n").next().unwrap().to_lowercase();
        for kind in [" file", " index", " director", " address", "(feature remote)", " - for"] {
            assert!(paths.contains(kind), "{command}: no {kind:?} in {paths}");
        }
    }
}

/// Usage errors that clap cannot find look like clap's own.
#[test]
fn arguments_that_do_not_go_together_are_wrong_usage_too() {
    let cannot = "standard input cannot be changed; name the file instead of -";
    for (line, problem, usage) in [
        (
            "metadata modelspec init - --architecture a --implementation i --title t",
            cannot,
            "metadata modelspec init [OPTIONS] --architecture <TEXT> --implementation <TEXT> \\\n\
             \x20                                          --title <TEXT> <PATH>",
        ),
        ("digest --record -", cannot, "digest [OPTIONS] <PATH>..."),
        (
            "digest --record a s3://bucket/a",
            "s3://bucket/a: only files on the disk can be changed; `safetensors convert` copies \
             this one there",
            "digest [OPTIONS] <PATH>...",
        ),
        (
            "stats -r a hf://owner/name",
            "hf://owner/name: --recursive searches directories of the disk; name each checkpoint of an \
             address without it",
            "stats [OPTIONS] <PATH>...",
        ),
        ("diff - -", "A and B cannot both be standard input", "diff [OPTIONS] <A> <B>"),
        (
            "convert a",
            "OUT is missing: name the output last, after the inputs",
            "convert [OPTIONS] <IN>... <OUT>",
        ),
        (
            "convert a b --rename ( x",
            "--rename: regex parse error:\n    (\n    ^\nerror: unclosed group",
            "convert [OPTIONS] <IN>... <OUT>",
        ),
    ] {
        let expected = format!(
            "error: {problem}\n\nUsage: safetensors {usage}\n\nFor more information, try '--help'.\n"
        );
        safetensors().args(line.words()).assert().code(2).stdout("").stderr(expected);
    }
}

#[test]
fn colours_are_printed_on_request() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = safetensors();
        command.envs(variables.iter().copied()).args(args).arg(&path);
        let output = command.output().unwrap();
        (text(&output.stdout).contains('\u{1b}'), text(&output.stderr).contains('\u{1b}'))
    };
    for (variables, coloured) in [
        (&[][..], false),
        (&[("CLICOLOR_FORCE", "1")], true),
        (&[("CLICOLOR_FORCE", "")], false),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
    ] {
        assert_eq!(run(variables, &["verify"]), (coloured, false), "{variables:?}");
        // The first error is the command's own, the second is clap's.
        assert_eq!(run(variables, &["inspect", "-f", "none"]), (false, coloured), "{variables:?}");
        assert_eq!(run(variables, &["inspect", "--none"]), (false, coloured), "{variables:?}");
    }
}

/// A file name that ends in `txt.safetensors` must not be shown as one that ends in another way.
#[test]
fn arguments_that_would_change_the_direction_of_text_do_not() {
    let dir = temp_dir();
    let hostile = "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}";
    let shown = r"\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}";
    let named = format!("{hostile}.gguf");
    small_file(dir.path(), "a.safetensors");
    for args in [
        // Errors of clap, and of the commands.
        &[hostile][..],
        &["verify", &format!("--{hostile}")],
        &["stats", "a.safetensors", "--bins", hostile],
        &["convert", "a.safetensors", "b.safetensors", "--cast", hostile],
        &["convert", "a.safetensors", "b.safetensors", "--rename", &format!("({hostile}"), "x"],
        &["convert", "a.safetensors", &named],
        &["map", "a.safetensors", "-o", &named],
    ] {
        let said = dir.run(args).code(2).stdout("").err();
        assert!(said.contains(shown) && is_plain(&said), "{args:?}: {said:?}");
    }
    // Or move the cursor.
    let said = dir.run(&["verify", "--\u{1b}[31mfo\ro"]).code(2).stdout("").err();
    assert!(said.contains(r"fo\ro") && said.contains("Usage: ") && is_plain(&said), "{said:?}");
}

#[cfg(not(feature = "sign"))]
#[test]
fn signatures_need_a_feature() {
    let dir = temp_dir();
    for args in [
        &["sign", "model", "--key", "key.pem"][..],
        &["verify", "model", "--signature", "model.sig", "--key", "key.pub"],
    ] {
        dir.run(args).fails(1, "was built without signatures");
    }
}

#[cfg(not(feature = "remote"))]
#[test]
fn addresses_need_a_feature() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    for args in [
        &["inspect", "hf://owner/name"][..],
        &["verify", "s3://bucket/model"],
        &["diff", "a.safetensors", "https://user:secret@host/a.safetensors?signature=secret"],
        &["convert", "a.safetensors", "s3://bucket/model/"],
        &["download", "owner/name"],
        &["cache", "list"],
    ] {
        let said = dir.run(args).code(trouble(args)).err();
        assert!(said.contains("was built without addresses and downloads"), "{said}");
        assert!(said.contains("--features remote") && !said.contains("secret"), "{said}");
    }
    // The memory of a command is no place, with the feature and without.
    let no_place = contains("empty when a command starts and lost when it ends");
    dir.run("convert a.safetensors memory:///a").code(2).stderr(no_place.clone());
    dir.run("inspect Memory:///a").code(1).stderr(no_place);
    // In place they are refused as ever, and such a path of the disk, which Windows has not, is
    // none.
    dir.run("metadata clear hf://owner/name").code(2);
    if !cfg!(windows) {
        fs::create_dir_all(dir.at("s3:/bucket")).unwrap();
        small_file(&dir.at("s3:/bucket"), "model.safetensors");
        dir.run("inspect ./s3://bucket").success();
    }
}

/// Rare commands and options are in a separate section, and are explained like everything else.
#[test]
fn rare_commands_and_options_are_in_a_later_section() {
    let dir = temp_dir();
    let short = |command: &str| dir.run(format!("{command} -h").trim_start()).quiet().out();
    for (command, rare) in [("", &["manifest", "manual"][..]), ("delta", &["squash", "follow"])] {
        let help = short(command);
        let more = help.find("\nMore commands:\n").unwrap();
        for name in rare {
            let places: Vec<_> = help.match_indices(&format!("\n  {name} ")).collect();
            assert!(places.len() == 1 && places[0].0 > more, "{name}: {help}");
        }
    }
    for name in ["manifest", "manual", "delta squash", "delta follow"] {
        assert!(short(name).contains(&format!("Usage: safetensors {name} ")), "{name}");
    }
    assert!(!short("show").contains("--csv"));
    dir.run("show --help").shows("\nMore options:\n");
    let convert = short("convert");
    for rare in ["bpk", "mpk", "f8_e4m3", "fnuz"] {
        assert!(!convert.contains(rare), "{rare}: {convert}");
    }
    let headings = ["Options", "Dtypes and quantised weights", "Tensors and their names", "Ranks"];
    let places = headings.map(|heading| convert.find(&format!("\n{heading}:\n")).unwrap());
    assert!(places.is_sorted(), "{convert}");
}
