use super::*;

const PREFIX: &str = "modelspec.";

/// The example values in the text of the standard, one for each key. Examples that the text
/// shortens are completed.
const EXAMPLES: [(&str, &str); 27] = [
    ("sai_model_spec", "1.0.0"),
    ("architecture", "stable-diffusion-xl-v1-base"),
    ("implementation", "https://github.com/Stability-AI/generative-models"),
    ("title", "Stable Diffusion XL 1.0 Base"),
    ("description", "Stable Diffusion XL is the next generation of Stable Diffusion"),
    ("author", "Stability AI"),
    ("date", "2023\u{2010}07\u{2010}16T18:13:38Z"),
    ("hash_sha256", "0xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ("implementation_version", "2.0.0"),
    ("license", "CreativeML Open RAIL-M"),
    ("usage_hint", "Always use <user> and <assistant> prefixes!"),
    ("thumbnail", "data:image/jpeg;base64,abc123+/abc1Zg=="),
    ("tags", "Person,Celebrity,Video Game"),
    ("merged_from", "Stable Diffusion XL 1.0 Base,My Overburned Model,My New Model"),
    ("resolution", "1024x768"),
    ("trigger_phrase", "mypetcat"),
    ("prediction_type", "epsilon"),
    ("timestep_range", "500,999"),
    ("encoder_layer", "2"),
    ("preprocessor", "depth"),
    ("is_negative_embedding", "true"),
    ("unet_dtype", "bf16,fp32"),
    ("vae_dtype", "bf16"),
    ("data_format", "gptq-4bit-gr128"),
    ("format_type", "chat"),
    ("language", "ja/JP,en/US"),
    ("format_template", "### System:\n%%SYSTEM%%\n### Human:\n%%USER%%\n### Assistant:\n%%AI%%"),
];

/// Returns the examples, with these values instead; `None` removes a key.
fn examples(changes: &[(&str, Option<&str>)]) -> Metadata {
    let mut all: Metadata =
        EXAMPLES.iter().map(|(name, text)| (full_name(name), text.to_string())).collect();
    for (name, text) in changes {
        all.remove(&full_name(name));
        all.extend(text.map(|text| (full_name(name), text.to_owned())));
    }
    all
}

/// Returns the levels and keys of all problems.
fn problems(metadata: &Metadata) -> Vec<(Level, String)> {
    let name = |problem: Problem| problem.to_string().split('"').nth(1).unwrap().to_owned();
    validate(metadata).into_iter().map(|problem| (problem.level, name(problem))).collect()
}

fn problem(level: Level, name: &str) -> (Level, String) {
    (level, full_name(name))
}

#[test]
fn the_examples_of_the_standard_follow_it() {
    let keys: Vec<_> = keys::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(EXAMPLES.map(|(name, _)| name).as_slice(), keys);
    let md5 = ("hash_md5", Some("0xd41d8cd98f00b204e9800998ecf8427e"));
    let one_step = ("timestep_range", Some("7,7"));
    for own in [("format", Some("pt")), ("usage.of.our.own", Some("kept")), md5, one_step] {
        assert_eq!(problems(&examples(&[own])), [], "{own:?}");
    }
    assert_eq!(entries(EXAMPLES), Ok(examples(&[])));
}

#[test]
fn a_key_that_every_model_must_have_is_missing_or_empty() {
    for name in ["sai_model_spec", "architecture", "implementation", "title"] {
        for text in [None, Some(" \n")] {
            let given = examples(&[(name, text)]);
            assert_eq!(problems(&given), [problem(Level::Error, name)], "{text:?}");
        }
    }
    let message = validate(&examples(&[("title", None)]))[0].to_string();
    assert_eq!(message, "\"modelspec.title\" is missing: it should be text that is not empty");
}

#[test]
fn a_model_lacks_the_keys_of_its_kind() {
    let [error, warning] = [Level::Error, Level::Warning];
    let all = ["description", "author", "date", "hash_sha256"].map(|name| problem(warning, name));
    let [resolution, format] = ["resolution", "data_format"].map(|name| problem(error, name));
    let [optional, kind] = ["resolution", "format_type"].map(|name| problem(warning, name));
    for (architecture, other, expected) in [
        ("some-new-architecture", None, vec![]),
        ("stable-diffusion-v1", None, vec![resolution]),
        ("stable-diffusion-v1", Some(("resolution", "512x512")), vec![]),
        ("stable-diffusion-v1/lora", None, vec![]),
        ("stable-diffusion-xl-v1/vae", Some(("vae_dtype", "fp32")), vec![]),
        ("flux-1-dev", Some(("prediction_type", "v")), vec![optional]),
        ("gpt-neo-x", None, vec![format.clone(), kind.clone()]),
        ("llama-3", Some(("language", "en/US")), vec![format, kind.clone()]),
        ("llama-3", Some(("data_format", "fp16")), vec![kind]),
    ] {
        let required = [("architecture", architecture), ("implementation", "i"), ("title", "t")];
        let given = entries(required.into_iter().chain(other)).unwrap();
        assert_eq!(problems(&given), [&all[..], &expected].concat(), "{architecture} {other:?}");
    }
}

#[test]
fn a_malformed_value_is_named_and_never_written() {
    let malformed: [(&str, &[&str]); 13] = [
        (
            "sai_model_spec",
            &["", "1", "1.0", "1.0.0.0", "v1.0.0", "1.0.x", "01.0.0", "1.0.4294967296", "1.0.0 "],
        ),
        ("date", &["", "yesterday", "2023-02-30", "16/07/2023", "2023-W28-7", "2023-197"]),
        (
            "hash_sha256",
            &["", "0x", "0x123abc", &EXAMPLES[7].1[2..], &EXAMPLES[7].1.to_uppercase()],
        ),
        ("hash_md5", &["", "0x", "0xABC", "abc"]),
        (
            "thumbnail",
            &["", "data:image/;base64,abcd", "data:image/png,abcd", "data:text/plain;base64,abcd"],
        ),
        (
            "thumbnail",
            &["data:image/png;base64,", "data:image/png;base64,abc", "data:image/png;base64,a==="],
        ),
        ("tags", &["", ",", "a,,b", "a, ,b", "a,"]),
        ("resolution", &["", "x", "1024", "1024x", "0x512", "512x0", "1024 x 768", "1024X768"]),
        ("resolution", &["-1x5", "+1x5", "1x2x3", "٣x٣"]),
        ("timestep_range", &["", "5", "5,", "9,5", "0, 999", "0,999,1", "-1,5"]),
        ("encoder_layer", &["", "-1", "2.0", "02", "4294967296", "two"]),
        ("is_negative_embedding", &["", "True", "1", "yes", "true "]),
        ("data_format", &["", "\t"]),
    ];
    for (name, texts) in malformed {
        for text in texts {
            let found = validate(&examples(&[(name, Some(text))]));
            let expected = entries([(name, *text)]).unwrap_err();
            assert_eq!(found, [expected], "{name}: {text}");
            assert_eq!(found[0].level, Level::Error);
            assert!(found[0].to_string().starts_with(&format!("\"{PREFIX}{name}\" should be ")));
        }
    }
    let message = validate(&examples(&[("resolution", Some("big\u{202e}"))]))[0].to_string();
    assert_eq!(
        message,
        "\"modelspec.resolution\" should be a resolution such as 1024x1024, found \"big\\u{202e}\""
    );
}

#[test]
fn another_major_version_is_a_warning() {
    assert_eq!(problems(&examples(&[("sai_model_spec", Some("1.7.3"))])), []);
    let given = examples(&[("sai_model_spec", Some("2.0.0"))]);
    assert_eq!(problems(&given), [problem(Level::Warning, "sai_model_spec")]);
}

#[test]
fn entries_have_the_version_and_the_last_value_of_each_key() {
    let made = entries([("title", "a"), ("tags", "x, y ,z"), ("mine", " kept "), ("title", "b")]);
    let made: Vec<_> = made.unwrap().into_iter().collect();
    let expected =
        [("mine", " kept "), ("sai_model_spec", "1.0.1"), ("tags", "x,y,z"), ("title", "b")];
    assert_eq!(made, expected.map(|(name, text)| (full_name(name), text.to_owned())));
    assert!(is_in(&made.into_iter().collect()) && !is_in(&Metadata::new()));
    let (key, text) = any_sha256();
    assert_eq!(problems(&examples(&[(&key[PREFIX.len()..], Some(&text))])), []);
}
