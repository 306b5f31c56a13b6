//! [`Expressions`]: regular expressions that a file has, such as the settings of a model.

use std::string::{String, ToString};

use regex::{Regex, RegexBuilder};

use crate::error::Quoted;

/// The most expressions of one file, and the most bytes of the text of one.
const MOST: usize = 100;
const LONGEST: usize = 1000;

/// The most bytes of a compiled expression. A name takes 5,000, `\w` 20,000.
const LARGEST: usize = 64 << 10;

/// Compiles the regular expressions of one file. A few bytes of text can make megabytes, so the
/// text and the size of each are limited, and their number. The caller drops one before it asks for
/// the next.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    count: usize,
}

impl Expressions {
    /// Compiles a pattern of the file as a part of a longer expression. Fails with the problem.
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
                "pattern {quoted} is one of more than {MOST} regular expressions, which are too many"
            ));
        }
        let expression = in_expression(pattern);
        let built = RegexBuilder::new(&expression).size_limit(LARGEST).build();
        built.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => format!(
                "pattern {quoted} takes more than the limit of {LARGEST} bytes once it is compiled"
            ),
            // The last line says what is wrong, those before it show where.
            error => {
                let error = error.to_string();
                let problem = error.lines().last().unwrap_or_default();
                format!("pattern {quoted} is no regular expression: {problem}")
            }
        })
    }
}
