//! Hints for expected commands with another name, and for a path without a command.

use std::path::Path;

use clap::error::{ContextKind, ContextValue};

/// Words that people type, and the commands that they mean, on one narrow line each.
const HINTS: &[(&[&str], &[&str])] = &[
    (
        &["merge", "join", "combine", "concat"],
        &["`safetensors convert IN... OUT` puts files and shards together"],
    ),
    (
        &["split", "shard", "reshard"],
        &["`safetensors convert IN OUT --max-shard-size SIZE` splits into shards"],
    ),
    (
        &["cast", "quantize", "rename", "prefix", "export", "import", "cp", "copy"],
        &["`safetensors convert` changes dtypes, names and files"],
    ),
    (
        &["ls", "list", "info", "tree", "keys", "header", "view"],
        &["`safetensors inspect` shows what is in a file"],
    ),
    (
        &["cat", "dump", "print", "get"],
        &[
            "`safetensors inspect` shows what is in a file",
            "`safetensors extract` writes the values of a tensor",
        ],
    ),
    (&["check", "validate", "test", "lint"], &["`safetensors verify` checks files"]),
    (
        &["hash", "sum", "checksum", "sha256", "md5"],
        &["`safetensors digest` prints digests of the data"],
    ),
    (&["cmp", "compare"], &["`safetensors diff` compares two checkpoints"]),
    (&["draw", "plot", "treemap", "picture"], &["`safetensors map` draws a checkpoint"]),
    (&["patch", "apply", "xdelta"], &["`safetensors delta apply` applies a delta to a checkpoint"]),
    (&["meta", "set", "edit"], &["`safetensors metadata` shows and changes metadata"]),
    (&["modelspec"], &["`safetensors metadata modelspec` checks and writes ModelSpec metadata"]),
];

/// The command that got a path, and the likely intended one. The first command's name is empty.
const PATHS: &[(&str, &str)] = &[
    ("modelspec", "did you mean `safetensors metadata modelspec validate FILE`?"),
    ("metadata", "did you mean `safetensors metadata get FILE`?"),
    ("delta", "did you mean `safetensors delta inspect DELTA`?"),
    ("cache", "did you mean `safetensors cache list`?"),
    ("", "did you mean `safetensors inspect FILE`?"),
];

pub(crate) fn add_to(error: &mut clap::Error) {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    if let Some(hints) = hints_for(typed, &usage) {
        // In place of names that only look alike.
        error.remove(ContextKind::SuggestedSubcommand);
        let hints = hints.into_iter().map(Into::into).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hints));
    }
}

/// `usage` is the usage of the command before the word.
fn hints_for(typed: &str, usage: &str) -> Option<Vec<&'static str>> {
    let (lower, words) = (typed.to_lowercase(), || usage.split_whitespace());
    if let Some((_, hints)) = HINTS.iter().find(|(words, _)| words.contains(&&*lower)) {
        return Some(hints.to_vec());
    }
    let is_path = typed == "-" || typed.contains(['.', '/', '\\']) || Path::new(typed).exists();
    let (_, hint) = PATHS.iter().find(|(of, _)| of.is_empty() || words().any(|it| it == *of))?;
    is_path.then(|| vec![*hint])
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_hint_is_for_a_command_that_exists_and_each_names_one_that_does() {
        let cli = crate::commands::Cli::command();
        let commands: Vec<_> = cli.get_subcommands().map(clap::Command::get_name).collect();
        for (words, hints) in HINTS {
            assert!(words.iter().all(|word| !commands.contains(word)), "{words:?}");
            for hint in *hints {
                let named = hint.strip_prefix("`safetensors ").unwrap_or_default();
                let named = named.split([' ', '`']).next().unwrap_or_default();
                assert!(commands.contains(&named), "{hint}");
                assert!("  tip: ".len() + hint.len() < 80, "{hint}");
            }
        }
    }
}
