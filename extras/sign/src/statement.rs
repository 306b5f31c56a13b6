//! The signed content: an in-toto statement with the digest of each file.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use safetensors_core::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::bundle::expect;
use crate::error::ErrorKind;
use crate::hash::HashAlgorithm;
use crate::json;
use crate::names::{SINGLE_FILE, is_plain};

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "https://model_signing/signature/v1.0";

pub(crate) type Digests = BTreeMap<String, [u8; 32]>;

#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) hash: HashAlgorithm,
    pub(crate) ignored: Vec<String>,
    pub(crate) files: Digests,
}

impl Manifest {
    /// Verify the signature first.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self> {
        let Statement { kind, subject, predicate_type, predicate } = json::parse(payload)?;
        expect("the type of the statement", STATEMENT, &kind)?;
        expect("the type of the predicate", PREDICATE, &predicate_type)?;
        let Predicate { serialization, resources } = predicate;
        expect("the way in which files are listed", "files", &serialization.method)?;
        let hash = HashAlgorithm::from_name(&serialization.hash_type)?;
        let [Subject { digest, .. }] = subject
            .try_into()
            .map_err(|all: Vec<_>| bad(format!("expected 1 subject, found {}", all.len())))?;

        let mut list = Sha256::new();
        let mut files = Digests::new();
        for Resource { name, algorithm, digest } in resources {
            expect("the hash of a file", hash.name(), &algorithm)?;
            let digest = parse_digest(&digest)?;
            list.update(digest);
            if name != SINGLE_FILE && !is_plain(&name) {
                return Err(ErrorKind::UnsafeName { found: name }.into());
            }
            if files.contains_key(&name) {
                return Err(ErrorKind::DuplicateName { found: name }.into());
            }
            files.insert(name, digest);
        }
        if files.is_empty() {
            return Err(ErrorKind::NoFiles.into());
        }
        if files.contains_key(SINGLE_FILE) && files.len() > 1 {
            return Err(ErrorKind::UnsafeName { found: SINGLE_FILE.to_owned() }.into());
        }
        let expected = HEXLOWER.encode(&list.finalize());
        let found = digest.sha256;
        if found != expected {
            return Err(ErrorKind::WrongListDigest { expected, found }.into());
        }
        Ok(Self { hash, ignored: serialization.ignore_paths, files })
    }

    /// Adds the name of the model, and whether links were followed. Sorts by name, as specified.
    pub(crate) fn to_json(&self, model: String, allow_symlinks: bool) -> Result<Vec<u8>> {
        let mut list = Sha256::new();
        let mut resource = |(name, digest): (&String, &[u8; 32])| {
            list.update(digest);
            Resource {
                name: name.clone(),
                algorithm: self.hash.name().to_owned(),
                digest: HEXLOWER.encode(digest),
            }
        };
        let resources = self.files.iter().map(&mut resource).collect();
        let statement = Statement {
            kind: STATEMENT.to_owned(),
            subject: vec![Subject {
                name: model,
                digest: SubjectDigest { sha256: HEXLOWER.encode(&list.finalize()) },
            }],
            predicate_type: PREDICATE.to_owned(),
            predicate: Predicate {
                serialization: Serialization {
                    method: "files".to_owned(),
                    hash_type: self.hash.name().to_owned(),
                    allow_symlinks,
                    ignore_paths: self.ignored.clone(),
                },
                resources,
            },
        };
        serde_json::to_vec(&statement).map_err(|error| bad(error.to_string()))
    }
}

fn parse_digest(text: &str) -> Result<[u8; 32]> {
    let bytes = HEXLOWER.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| bad("a digest is not 64 lower-case hexadecimal digits"))
}

fn bad(problem: impl Into<String>) -> Error {
    ErrorKind::BadBundle { problem: problem.into() }.into()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
struct Subject {
    name: String,
    digest: SubjectDigest,
}

#[derive(Serialize, Deserialize)]
struct SubjectDigest {
    sha256: String,
}

#[derive(Serialize, Deserialize)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<Resource>,
}

#[derive(Serialize, Deserialize)]
struct Serialization {
    method: String,
    hash_type: String,
    allow_symlinks: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ignore_paths: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Resource {
    name: String,
    algorithm: String,
    digest: String,
}
