//! [`Expressions`]: regular expressions of files, such as settings of a model.

use std::string::{String, ToString};

use regex_automata::meta::{BuildError, Config, Regex};
use regex_automata::nfa::thompson::WhichCaptures;

use crate::format::error::Quoted;

pub(crate) const LONGEST: usize = 1000;

/// Of a file. When compiled, a name takes 2,000 bytes, `\w` 20,000.
const MOST: usize = 200;
const MOST_BYTES: usize = 4 << 20;

// Limited, because a few bytes of text can make megabytes. One that has searched takes three times
// its size.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    count: usize,
    bytes: usize,
}

impl Expressions {
    /// Compiles a part of a longer expression, or returns the problem.
    pub(crate) fn compile(
        &mut self,
        pattern: &str,
        in_expression: impl FnOnce(&str) -> String,
    ) -> Result<Regex, String> {
        let quoted = Quoted(pattern);
        if pattern.len() > LONGEST {
            let len = pattern.len();
            return Err(format!("pattern {quoted} has {len} bytes, over the limit of {LONGEST}"));
        }
        self.count += 1;
        if self.count > MOST {
            return Err(format!(
                "over the limit of {MOST} regular expressions, at pattern {quoted}"
            ));
        }
        // A search would keep the bounds of each group of the expression for each of its states.
        let config = Config::new()
            .which_captures(WhichCaptures::Implicit)
            .nfa_size_limit(Some(MOST_BYTES - self.bytes))
            .onepass(false)
            .hybrid(false)
            .dfa(false)
            .backtrack(false);
        let built = Regex::builder().configure(config).build(&in_expression(pattern));
        let regex = built.map_err(|error| problem(&quoted, &error))?;
        self.bytes = MOST_BYTES.min(self.bytes + regex.memory_usage());
        Ok(regex)
    }
}

fn problem(pattern: &Quoted<'_>, error: &BuildError) -> String {
    match error.syntax_error() {
        // The last line names the problem, the lines before it show the place.
        Some(error) => {
            let error = error.to_string();
            let problem = error.lines().last().unwrap_or_default();
            format!("pattern {pattern} is no regular expression: {problem}")
        }
        None => format!(
            "over the limit of {MOST_BYTES} bytes for compiled regular expressions, at pattern \
             {pattern}"
        ),
    }
}
