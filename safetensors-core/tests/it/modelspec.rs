//! The keys of the ModelSpec standard: reading, writing and validating them.

use proptest::prelude::*;
use safetensors_core::modelspec::{
    Level, ModelSpec, Problem, Resolution, TimestepRange, Version, validate,
};
use safetensors_core::{ErrorKind, Metadata};

const PREFIX: &str = "modelspec.";

/// The example values in the text of the standard, one for each key. Examples that the text
/// shortens are completed.
const EXAMPLES: &[(&str, &str)] = &[
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

fn metadata<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Metadata {
    pairs.into_iter().map(|(name, text)| (format!("{PREFIX}{name}"), text.to_string())).collect()
}

fn all_examples() -> Metadata {
    metadata(EXAMPLES.iter().copied())
}

fn findings(metadata: &Metadata) -> Vec<(Level, String)> {
    validate(metadata).into_iter().map(|finding| (finding.level, finding.key)).collect()
}

#[test]
fn the_examples_are_all_keys_of_the_standard() {
    let spec = ModelSpec::from_metadata(&all_examples()).unwrap().unwrap();
    // A key that the standard does not list would be in `other`.
    assert!(spec.other.is_empty(), "{:?}", spec.other);
    assert_eq!((EXAMPLES.len(), all_examples().len()), (27, 27));
}

#[test]
fn every_key_is_read_into_its_field_and_written_back() {
    let mut given = all_examples();
    given.insert("format".into(), "pt".into());
    given.insert("modelspec.usage.of.our.own".into(), "kept".into());
    given.insert("modelspec.hash_md5".into(), "0xd41d8cd98f00b204e9800998ecf8427e".into());
    assert_eq!(validate(&given), []);
    let spec = ModelSpec::from_metadata(&given).unwrap().unwrap();

    assert_eq!(spec.version, Version { major: 1, minor: 0, patch: 0 });
    assert_eq!(spec.title, "Stable Diffusion XL 1.0 Base");
    assert_eq!(spec.hash_sha256.unwrap().to_bytes()[..3], [0xe3, 0xb0, 0xc4]);
    assert_eq!(spec.tags, ["Person", "Celebrity", "Video Game"]);
    assert_eq!(spec.resolution, Some(Resolution { width: 1024, height: 768 }));
    assert_eq!(spec.timestep_range, Some(TimestepRange { min: 500, max: 999 }));
    assert_eq!((spec.encoder_layer, spec.is_negative_embedding), (Some(2), Some(true)));
    assert_eq!(spec.other.keys().collect::<Vec<_>>(), ["hash_md5", "usage.of.our.own"]);

    // Inserting into other metadata removes all keys with the prefix and keeps the others.
    let mut written =
        Metadata::from([("format".into(), "pt".into()), ("modelspec.old".into(), "gone".into())]);
    spec.insert_into(&mut written).unwrap();
    assert_eq!(written, given);
}

#[test]
fn without_the_mandatory_identifier_there_is_no_model_spec() {
    let mut given = all_examples();
    given.remove("modelspec.sai_model_spec");
    assert_eq!(ModelSpec::from_metadata(&given).unwrap(), None);
    assert_eq!(ModelSpec::from_metadata(&Metadata::new()).unwrap(), None);
    assert_eq!(findings(&given), [(Level::Error, "modelspec.sai_model_spec".into())]);
}

#[test]
fn what_every_model_must_have() {
    for name in ["architecture", "implementation", "title"] {
        let mut given = all_examples();
        given.remove(&format!("{PREFIX}{name}"));
        let error = ModelSpec::from_metadata(&given).unwrap_err();
        let ErrorKind::BadModelSpec { key, found: None, .. } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(*key, format!("modelspec.{name}"));
        assert_eq!(
            error.to_string(),
            format!("\"modelspec.{name}\" should be text that is not empty, but is missing")
        );
        assert_eq!(findings(&given), [(Level::Error, key.clone())]);
        // A value of white space only is an error too.
        given.insert(key.clone(), " \n".into());
        assert!(matches!(
            ModelSpec::from_metadata(&given).unwrap_err().kind(),
            ErrorKind::BadModelSpec { .. }
        ));
    }
}

#[test]
fn what_every_model_should_have() {
    let spec = ModelSpec::new("some-new-architecture", "diffusers", "T");
    let expected = ["description", "author", "date", "hash_sha256"];
    assert_eq!(
        findings(&spec.to_metadata().unwrap()),
        expected.map(|name| (Level::Warning, format!("modelspec.{name}")))
    );
}

#[test]
fn image_generators_need_a_resolution() {
    let lack = |architecture: &str, other: &[(&str, &str)]| {
        let mut given = ModelSpec::new(architecture, "i", "t").to_metadata().unwrap();
        given.extend(metadata(other.iter().copied()));
        validate(&given)
            .into_iter()
            .find(|finding| finding.key == "modelspec.resolution")
            .map(|f| f.level)
    };
    assert_eq!(lack("stable-diffusion-v1", &[]), Some(Level::Error));
    assert_eq!(lack("stable-diffusion-v1/lora", &[]), None);
    assert_eq!(lack("stable-diffusion-xl-v1/vae", &[("vae_dtype", "fp32")]), None);
    assert_eq!(lack("flux-1-dev", &[]), None);
    assert_eq!(lack("flux-1-dev", &[("prediction_type", "v")]), Some(Level::Warning));
    assert_eq!(lack("stable-diffusion-v1", &[("resolution", "512x512")]), None);
}

#[test]
fn text_models_need_a_data_format() {
    let lack = |architecture: &str, other: &[(&str, &str)]| {
        let mut given = ModelSpec::new(architecture, "i", "t").to_metadata().unwrap();
        given.extend(metadata(other.iter().copied()));
        let of_text = ["data_format", "format_type", "language", "format_template"]
            .map(|name| format!("{PREFIX}{name}"));
        findings(&given).into_iter().filter(|(_, key)| of_text.contains(key)).collect::<Vec<_>>()
    };
    let (data_format, format_type) =
        ("modelspec.data_format".to_string(), "modelspec.format_type".to_string());
    let both = vec![(Level::Error, data_format), (Level::Warning, format_type.clone())];
    assert_eq!(lack("gpt-neo-x", &[]), both);
    assert_eq!(lack("llama-3", &[("language", "en/US")]), both);
    assert_eq!(lack("llama-3", &[("data_format", "fp16")]), [(Level::Warning, format_type)]);
    assert_eq!(lack("stable-diffusion-v1", &[]), []);
    assert_eq!(lack("llama-3", &[]), []);
}

#[test]
fn malformed_values_are_named() {
    let malformed: &[(&str, &[&str])] = &[
        (
            "sai_model_spec",
            &["", "1", "1.0", "1.0.0.0", "v1.0.0", "1.0.x", "01.0.0", "1.0.4294967296", "1.0.0 "],
        ),
        ("date", &["", "yesterday", "2023-02-30", "16/07/2023", "2023-W28-7", "2023-197"]),
        (
            "hash_sha256",
            &[
                "",
                "0x",
                "0x123abc",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ],
        ),
        ("hash_sha256", &["0xE3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"]),
        (
            "thumbnail",
            &["", "data:image/;base64,abcd", "data:image/png,abcd", "data:text/plain;base64,abcd"],
        ),
        (
            "thumbnail",
            &[
                "data:image/png;base64,",
                "data:image/png;base64,abc",
                "data:image/png;base64,a===",
                "abcd",
            ],
        ),
        ("tags", &["", ",", "a,,b", "a, ,b", "a,"]),
        (
            "resolution",
            &["", "x", "1024", "1024x", "0x512", "1024 x 768", "1024X768", "-1x5", "+1x5", "1x2x3"],
        ),
        ("resolution", &["٣x٣"]),
        ("timestep_range", &["", "5", "5,", "9,5", "0, 999", "0,999,1", "-1,5"]),
        ("encoder_layer", &["", "-1", "2.0", "02", "4294967296", "two"]),
        ("is_negative_embedding", &["", "True", "1", "yes", "true "]),
        ("data_format", &["", "\t"]),
    ];
    for (name, texts) in malformed {
        let key = format!("{PREFIX}{name}");
        for text in *texts {
            let mut given = all_examples();
            given.insert(key.clone(), text.to_string());
            let error = ModelSpec::from_metadata(&given).unwrap_err();
            let ErrorKind::BadModelSpec { key: named, found: Some(found), .. } = error.kind()
            else {
                panic!("{error}")
            };
            assert_eq!((named, found.as_str()), (&key, *text));
            let found = validate(&given);
            let [Problem { level: Level::Error, key: named, found: Some(found), .. }] =
                found.as_slice()
            else {
                panic!("{text:?}: {found:?}")
            };
            assert_eq!((named, found.as_str()), (&key, *text));
        }
    }
}

#[test]
fn hashes_by_other_algorithms_have_the_form_of_hashes() {
    let mut given = all_examples();
    given.insert("modelspec.hash_md5".into(), "0xABC".into());
    assert_eq!(findings(&given), [(Level::Error, "modelspec.hash_md5".into())]);
    let error = ModelSpec::from_metadata(&given).unwrap_err();
    let ErrorKind::BadModelSpec { key, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(key, "modelspec.hash_md5");
}

#[test]
fn another_major_version_is_a_warning() {
    let mut given = all_examples();
    given.insert("modelspec.sai_model_spec".into(), "1.7.3".into());
    assert_eq!(findings(&given), []);
    given.insert("modelspec.sai_model_spec".into(), "2.0.0".into());
    assert_eq!(findings(&given), [(Level::Warning, "modelspec.sai_model_spec".into())]);
    assert_eq!(ModelSpec::from_metadata(&given).unwrap().unwrap().version.major, 2);
}

#[test]
fn values_that_could_not_be_read_back_are_not_written() {
    let spec = || ModelSpec::new("a", "i", "t");
    let refused = |change: fn(&mut ModelSpec), expected: &str| {
        let mut spec = spec();
        change(&mut spec);
        let mut metadata = Metadata::from([("modelspec.old".into(), "as it was".into())]);
        let before = metadata.clone();
        let error = spec.insert_into(&mut metadata).unwrap_err();
        assert_eq!(metadata, before);
        assert!(
            matches!(error.kind(), ErrorKind::BadModelSpec { key, .. } if key == expected),
            "{error}"
        );
    };
    refused(|spec| spec.title.clear(), "modelspec.title");
    refused(|spec| spec.date = Some("now".into()), "modelspec.date");
    refused(|spec| spec.tags = vec!["a,b".into()], "modelspec.tags");
    refused(|spec| spec.tags = vec![" a".into()], "modelspec.tags");
    refused(|spec| spec.merged_from = vec![String::new()], "modelspec.merged_from");
    refused(
        |spec| spec.resolution = Some(Resolution { width: 0, height: 1 }),
        "modelspec.resolution",
    );
    refused(
        |spec| spec.timestep_range = Some(TimestepRange { min: 2, max: 1 }),
        "modelspec.timestep_range",
    );
    refused(|spec| spec.other = [("title".into(), "x".into())].into(), "modelspec.title");
    refused(|spec| spec.other = [("hash_md5".into(), "x".into())].into(), "modelspec.hash_md5");
}

#[test]
fn messages_quote_the_values_of_a_file() {
    let mut given = all_examples();
    given.insert("modelspec.resolution".into(), "big\u{202e}".into());
    let message = validate(&given)[0].to_string();
    assert_eq!(
        message,
        "\"modelspec.resolution\" should be a resolution such as 1024x1024, found \"big\\u{202e}\""
    );
    assert!(ModelSpec::from_metadata(&given).unwrap_err().to_string().contains("\"big\\u{202e}\""));
}

proptest! {
    /// No value causes a panic. Reading agrees with validating: metadata that can be read has no
    /// malformed value.
    #[test]
    fn hostile_text(values in prop::collection::vec((0..EXAMPLES.len(), hostile()), 1..4)) {
        let mut given = all_examples();
        for (i, text) in values {
            given.insert(format!("{PREFIX}{}", EXAMPLES[i].0), text);
        }
        let errors =
            validate(&given).into_iter().filter(|problem| problem.level == Level::Error).count();
        match ModelSpec::from_metadata(&given) {
            Ok(spec) => {
                prop_assert_eq!(errors, 0);
                let written = spec.clone().unwrap().to_metadata().unwrap();
                prop_assert_eq!(ModelSpec::from_metadata(&written).unwrap(), spec);
            }
            Err(_) => prop_assert!(errors > 0),
        }
    }
}

/// Text of any kind, and text of characters that occur in the forms.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9xTWZ:,.+\u{2010}a-f -]{0,24}",
        "data:image/[a-z]{0,3};base64,[A-Za-z=]{0,8}"
    ]
}

#[test]
fn fields_are_set_by_name_and_text() {
    let mut spec = ModelSpec::new("a", "i", "t");
    for (name, text) in [
        ("title", "other"),
        ("tags", "x,y"),
        ("resolution", "8x9"),
        ("mine", "kept"),
        ("date", "2024"),
    ] {
        spec.set(name, text).unwrap();
    }
    assert_eq!(
        (spec.title.as_str(), spec.tags.len(), spec.date.as_deref()),
        ("other", 2, Some("2024"))
    );
    assert_eq!(spec.other["mine"], "kept");
    let before = spec.clone();
    for (name, text) in [
        ("title", " "),
        ("resolution", "big"),
        ("hash_md5", "x"),
        ("tags", "a,,b"),
        ("sai_model_spec", "1"),
    ] {
        let error = spec.set(name, text).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadModelSpec { .. }), "{name}: {error}");
    }
    assert_eq!(spec, before);
    assert!(ModelSpec::is_in(&spec.to_metadata().unwrap()) && !ModelSpec::is_in(&Metadata::new()));
}
