//! Finds the blocks in a PEM text, which may have comments.

use std::path::Path;

use safetensors_core::Result;

use crate::error::ErrorKind;

pub(crate) struct Block<'a> {
    pub(crate) label: &'a str,
    pub(crate) text: &'a str,
}

impl Block<'_> {
    /// Old PEM headers mark encryption.
    pub(crate) fn has_encryption_header(&self) -> bool {
        self.text.contains("Proc-Type:") && self.text.contains("ENCRYPTED")
    }
}

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";

/// Fails for the text of a key instead of a path, which no error may show.
pub(crate) fn refuse_pem(path: &Path) -> Result<()> {
    if !path.to_string_lossy().contains(BEGIN) {
        return Ok(());
    }
    Err(ErrorKind::BadKey { problem: "a path is expected, not a text in PEM".to_owned() }.into())
}

pub(crate) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(BEGIN) {
        rest = &rest[start..];
        let Some(label) = rest[BEGIN.len()..].split(DASHES).next() else { break };
        let end = format!("-----END {label}-----");
        let Some(len) = rest.find(&end).map(|at| at + end.len()) else { break };
        blocks.push(Block { label, text: &rest[..len] });
        rest = &rest[len..];
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parsed_between_other_text() {
        let text = "a\n-----BEGIN X-----\nAA==\n-----END X-----\nb\n-----BEGIN Y Z-----\n\
                    Proc-Type: 4,ENCRYPTED\n-----END Y Z-----";
        let found = blocks(text);
        let labels: Vec<_> = found.iter().map(|block| block.label).collect();
        assert_eq!(labels, ["X", "Y Z"]);
        assert_eq!(found[0].text, "-----BEGIN X-----\nAA==\n-----END X-----");
        let encrypted: Vec<_> = found.iter().map(Block::has_encryption_header).collect();
        assert_eq!(encrypted, [false, true]);
        for text in ["", "-----BEGIN ", "-----BEGIN X-----", "-----BEGIN X-----\n-----END Y-----"] {
            assert!(blocks(text).is_empty(), "{text}");
        }
    }
}
