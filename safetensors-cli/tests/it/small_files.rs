//! Small files next to a checkpoint that are no small files, or are somewhere else.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::convert_gguf;
use crate::delta_follow::versions;
use crate::fixtures::*;
use crate::lora::one_module;
use crate::plan::llama;
use crate::training_epochs::training_run;

/// The thing that replaces a file.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Fifo,
    /// A link to /dev/zero.
    Device,
    /// A link to the file itself, which is in another directory.
    LinkOut,
    /// A link to the file itself, which is below its directory.
    LinkBelow,
    /// 1 GiB, all of it a hole.
    Sparse,
    /// A number that is none, as Python writes it.
    Nan,
    Absent,
}

const KINDS: [Kind; 7] = [
    Kind::Fifo,
    Kind::Device,
    Kind::LinkOut,
    Kind::LinkBelow,
    Kind::Sparse,
    Kind::Nan,
    Kind::Absent,
];

/// The expected action of the command.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// Reads the file, or passes over it: nothing is said of it.
    Reads,
    /// Succeeds, and says this and the name of the file or its directory.
    Says(&'static str),
    /// Fails with this code, says the same, and writes nothing.
    Fails(i32, &'static str),
    /// Takes too long for a test.
    Skipped,
}

use Does::{Fails, Reads, Says, Skipped};

/// A file, a command that looks at it, its text with an invalid number, and the expected results.
struct Case(&'static str, &'static str, &'static str, [Does; KINDS.len()]);

const SPECIAL: &str = "expected a regular file, found a special file";
const OUT: &str = "expected a regular file, found a link that leads out of its directory; put a \
                   copy there";
const LARGE: &str = "bytes, found 1073741824";

/// Settings that are read: an error has their problem.
const NEEDED: [Does; KINDS.len()] =
    [Fails(1, SPECIAL), Fails(1, OUT), Fails(1, OUT), Reads, Fails(1, LARGE), Reads, Reads];

/// Also for a file with a special form, or one that must be there.
const fn with(nan: Does, absent: &'static str) -> [Does; KINDS.len()] {
    [NEEDED[0], NEEDED[1], NEEDED[2], Reads, NEEDED[4], nan, Fails(1, absent)]
}

const fn needed(nan: &'static str, absent: &'static str) -> [Does; KINDS.len()] {
    with(Fails(1, nan), absent)
}

const REQUIRED: [Does; KINDS.len()] = with(Reads, "there is no such file");

/// Settings that are looked at, and not needed: a warning has their problem.
const COMPARED: [Does; KINDS.len()] =
    [Says(SPECIAL), Says(OUT), Says(OUT), Reads, Says(LARGE), Reads, Reads];

/// Files that are passed over if they are not as expected.
const OPTIONAL: [Does; KINDS.len()] = [Reads; KINDS.len()];

/// Files that are copied.
const COPIED: [Does; KINDS.len()] =
    [Says(LEFT_OUT), Says(LEFT_OUT), Says(LEFT_OUT), Reads, Skipped, Reads, Reads];

/// The directory has a checkpoint of ranks, and `latest` names its newest part.
const RANKS: Does = Fails(1, "files that the ranks of a training have saved");

/// The output is a shard, by an index that may be a link to anywhere, as the shards may be.
const SHARD: Does = Fails(1, "is a shard of shards/a.safetensors.index.json");

const LEFT_OUT: &str = "or links out of their directory";

/// The result for a file that the user has named. It may be a pipe, and a link to anywhere.
const fn named(nan: &'static str) -> [Does; KINDS.len()] {
    let absent = Fails(1, "No such file or directory");
    [Reads, Fails(1, SPECIAL), Reads, Reads, Fails(1, LARGE), Fails(1, nan), absent]
}

const GGUF: &str = "convert model out.gguf --quantize f32";

const CASES: &[Case] = &[
    Case(
        "fp8/config.json",
        "convert fp8 out --dtype bf16",
        r#"{"x": NaN, "y": [-Infinity]}"#,
        NEEDED,
    ),
    Case("plain/config.json", "convert plain out", r#"{"x": NaN}"#, COMPARED),
    Case(
        "lora/adapter_config.json",
        "convert plain out --lora lora",
        r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "lora_dropout": NaN}"#,
        NEEDED,
    ),
    Case(
        "model/config.json",
        GGUF,
        r#"{
            "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 8, "rms_norm_eps": 1e-5, "initializer_range": NaN
        }"#,
        REQUIRED,
    ),
    Case(
        "model/tokenizer.json",
        GGUF,
        r#"{
            "decoder": {"type": "ByteLevel"}, "dropout": NaN,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
        }"#,
        REQUIRED,
    ),
    Case("model/tokenizer_config.json", GGUF, "\u{feff}{\"model_max_length\": Infinity}", NEEDED),
    Case("model/generation_config.json", GGUF, r#"{"temperature": NaN}"#, NEEDED),
    Case("model/chat_template.jinja", GGUF, "NaN", NEEDED),
    Case(
        "run/checkpoints/epoch-9/manifest.json",
        "inspect run",
        r#"{"x": NaN}"#,
        needed("expected value", "there is no such file"),
    ),
    Case("run/train/epoch-9/Loss.log", "inspect run", "NaN\n", OPTIONAL),
    Case(
        "plan.json",
        "convert llama.safetensors out --plan plan.json",
        r#"{"x": NaN}"#,
        named("the plan of ranks is malformed"),
    ),
    #[cfg(feature = "sign")]
    Case(
        "key.pem",
        "sign plain/model.safetensors --key key.pem --signature out",
        "NaN",
        named("not a usable key"),
    ),
    #[cfg(feature = "sign")]
    Case(
        "model.sig",
        "verify plain/model.safetensors --signature model.sig --key key.pub",
        r#"{"x": NaN}"#,
        [
            Fails(1, SPECIAL),
            Fails(1, SPECIAL),
            Reads,
            Reads,
            Fails(1, "more than the limit"),
            Fails(1, "not a signature"),
            Fails(1, "No such file or directory"),
        ],
    ),
    Case("base/README.md", "delta apply base delta out", "NaN", COPIED),
    Case("root/weight_v000000/notes.txt", "delta follow root out --once", "NaN", COPIED),
    Case(
        "served/.safetensors-follow.json",
        "delta follow root served --once",
        r#"{"x": NaN}"#,
        needed("exists; --force replaces it", "the directory has files"),
    ),
    Case(
        "saved/latest",
        "convert plain saved --dry-run",
        "NaN",
        [Reads, Reads, RANKS, RANKS, Reads, Reads, Reads],
    ),
    Case(
        "shards/a.safetensors.index.json",
        "convert plain shards/b.safetensors --dry-run",
        r#"{"x": NaN}"#,
        [Reads, Reads, SHARD, SHARD, Reads, Reads, Reads],
    ),
    Case("manifest.json", "metadata set llama.safetensors a=b", r#"{"x": NaN}"#, OPTIONAL),
];

fn fixtures(dir: &Path) {
    for name in ["fp8", "plain", "lora", "saved/iter", "shards"] {
        fs::create_dir_all(dir.at(name)).unwrap();
    }
    let options = quick();
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let scale = array(&[1, 1], &[0.5_f32]);
    let tensors = [("l.weight", codes), ("l.weight_scale_inv", scale)];
    save(dir.at("fp8/model.safetensors"), tensors, &options).unwrap();
    small_file(&dir.at("plain"), "model.safetensors");
    llama(dir, "llama.safetensors");
    dir.run("plan llama.safetensors -w 2 -o plan.json").success();
    let lora = one_module(&dir.at("lora"), "embed", [2, 3], 1.0);
    fs::rename(lora, dir.at("lora/adapter_model.safetensors")).unwrap();
    convert_gguf::save_model(dir, convert_gguf::tensors());
    training_run(&dir.at("run"));
    let [from, to] =
        [9, 10].map(|n| dir.at(format!("run/checkpoints/epoch-{n}/optimizer.safetensors")));
    fs::copy(from, to).unwrap();
    #[cfg(feature = "sign")]
    {
        for (from, to) in [("p256.pem", "key.pem"), ("p256.pub", "key.pub")] {
            fs::copy(crate::sign::fixture(from), dir.at(to)).unwrap();
        }
        let sign = "sign plain/model.safetensors --key key.pem --signature model.sig";
        dir.run(sign).success();
    }
    versions(dir);
    fs::rename(dir.at("step-1"), dir.at("base")).unwrap();
    fs::rename(dir.at("weight_v000002"), dir.at("delta")).unwrap();
    dir.run("delta follow root served --once").success();
    for (name, text) in [
        ("fp8/config.json", r#"{"model_type": "llama"}"#),
        ("plain/config.json", r#"{"model_type": "llama"}"#),
        ("lora/adapter_config.json", r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1}"#),
        ("model/tokenizer.json", TOKENIZER),
        ("model/tokenizer_config.json", "{}"),
        ("model/generation_config.json", "{}"),
        ("model/chat_template.jinja", "{{ x }}"),
        ("base/config.json", "{}"),
        ("base/README.md", "base"),
        ("root/weight_v000000/config.json", "{}"),
        ("root/weight_v000000/notes.txt", "notes"),
        ("saved/latest", "iter"),
        ("shards/a.safetensors.index.json", r#"{"weight_map": {"w": "b.safetensors"}}"#),
        ("manifest.json", "{}"),
    ] {
        dir.write(name, text);
    }
}

const TOKENIZER: &str = r#"{
    "added_tokens": [], "normalizer": null, "decoder": {"type": "ByteLevel"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
}"#;

fn put(kind: Kind, Case(_, _, nan, does): &Case, path: &Path, elsewhere: &Path) {
    let below = path.with_file_name("below");
    match kind {
        Kind::Fifo => {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
            if matches!(does[0], Reads) {
                let (fifo, content) = (path.to_owned(), fs::read(elsewhere).unwrap());
                // It waits for the command to open the FIFO.
                thread::spawn(move || fs::write(fifo, content));
            }
        }
        Kind::Device => symlink("/dev/zero", path).unwrap(),
        Kind::LinkOut => symlink(elsewhere, path).unwrap(),
        Kind::LinkBelow => {
            fs::create_dir(&below).unwrap();
            fs::copy(elsewhere, below.join("file")).unwrap();
            symlink("below/file", path).unwrap();
        }
        Kind::Sparse => File::create(path).unwrap().set_len(1 << 30).unwrap(),
        Kind::Nan => fs::write(path, nan).unwrap(),
        Kind::Absent => {}
    }
}

#[test]
fn no_file_next_to_a_checkpoint_hangs_fills_memory_or_leads_out() {
    let dir = temp_dir();
    let elsewhere = dir.at("elsewhere");
    fixtures(dir.path());
    for case in CASES {
        let &Case(file, line, _, all) = case;
        let path = dir.at(file);
        fs::rename(&path, &elsewhere).unwrap();
        for (kind, does) in KINDS.into_iter().zip(all) {
            if matches!(does, Skipped) {
                continue;
            }
            put(kind, case, &path, &elsewhere);
            let mut command = safetensors();
            command.current_dir(dir.path()).args(line.words()).timeout(Duration::from_secs(60));
            let output = command.output().unwrap();
            let what = format!("{file} {kind:?}: {does:?}, {output:?}");
            let said = text(&output.stderr).to_owned() + text(&output.stdout);
            let outs = ["out", "out.gguf"].map(|name| dir.at(name));
            let name = path.file_name().unwrap().to_str().unwrap();
            let directory = file.split('/').next().unwrap();
            let (code, says) = match does {
                Fails(code, says) => (code, Some(says)),
                Says(says) => (0, Some(says)),
                Reads | Skipped => (0, None),
            };
            assert_eq!(output.status.code(), Some(code), "{what}");
            assert!(code == 0 || !outs.iter().any(|out| out.exists()), "{what}");
            match says {
                Some(says) => {
                    let is_named = said.contains(name) || said.contains(directory);
                    assert!(said.contains(says) && is_named, "{what}");
                }
                None => assert!(!text(&output.stderr).contains(name), "{what}"),
            }
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir_all(path.with_file_name("below"));
            for out in outs {
                let _ = fs::remove_file(&out);
                let _ = fs::remove_dir_all(&out);
            }
        }
        fs::rename(&elsewhere, &path).unwrap();
    }
}
