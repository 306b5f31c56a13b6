//! ModelSpec: what is read is written again, and reading agrees with validating.
//!
//! The input is text: each line is an entry of the metadata, `key=value`. In a value `\n` stands
//! for a line end.

use safetensors_core::modelspec::{Level, ModelSpec, validate};
use safetensors_core::{ErrorKind, Metadata};

/// Checks one input.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let entries = text.lines().map(|line| line.split_once('=').unwrap_or((line, "")));
    let metadata: Metadata =
        entries.map(|(key, value)| (key.to_owned(), value.replace("\\n", "\n"))).collect();

    let findings = validate(&metadata);
    for finding in &findings {
        assert!(!finding.to_string().chars().any(char::is_control), "{finding:?}");
        assert_eq!(finding.found.as_ref(), metadata.get(&finding.key));
    }
    let has_wrong_value =
        findings.iter().any(|finding| finding.level == Level::Error && finding.found.is_some());
    match ModelSpec::from_metadata(&metadata) {
        Ok(None) => assert!(!metadata.contains_key("modelspec.sai_model_spec")),
        Ok(Some(spec)) => {
            assert!(!has_wrong_value, "{findings:?}");
            assert!(ModelSpec::is_in(&metadata));
            is_written_as_read(&spec, &metadata);
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::BadModelSpec { .. }), "{error}");
            let is_error = |finding: &_| matches!(finding, Level::Error);
            assert!(findings.iter().any(|finding| is_error(&finding.level)), "{error}");
        }
    }
    each_alone(&metadata);
}

/// The keys come out as they went in, but for lists, whose items lose the white space around them.
fn is_written_as_read(spec: &ModelSpec, metadata: &Metadata) {
    let written = spec.to_metadata().unwrap();
    assert_eq!(ModelSpec::from_metadata(&written).unwrap().as_ref(), Some(spec));
    let read = metadata.iter().filter(|(key, _)| key.starts_with("modelspec."));
    for (key, value) in read {
        let unspaced = value.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        let written = written.get(key);
        assert!(written == Some(value) || written == Some(&unspaced), "{key}: {written:?}");
    }
    let mut elsewhere = metadata.clone();
    spec.insert_into(&mut elsewhere).unwrap();
    let others = |metadata: &Metadata| -> Metadata {
        metadata
            .iter()
            .filter(|(key, _)| !key.starts_with("modelspec."))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    assert_eq!(others(&elsewhere), others(metadata));
}

/// Setting a field by its name takes exactly what validating takes, and leaves it on an error.
fn each_alone(metadata: &Metadata) {
    for (name, value) in metadata {
        let mut spec = ModelSpec::new("architecture", "implementation", "title");
        let before = spec.clone();
        let key = format!("modelspec.{name}");
        let findings = validate(&Metadata::from([(key.clone(), value.clone())]));
        let is_wrong = findings.iter().any(|finding| {
            finding.key == key && finding.found.is_some() && finding.level == Level::Error
        });
        match spec.set(name, value) {
            Ok(()) => assert!(!is_wrong, "{name}"),
            Err(_) => {
                assert!(is_wrong, "{name}");
                assert_eq!(spec, before);
            }
        }
    }
}
