//! Python literals in the header of a `.npy` file.
//!
//! NumPy uses `ast.literal_eval`. This parser knows the part that writers use: dictionaries,
//! tuples, lists, strings, decimal integers, booleans and `None`. It refuses everything else, such
//! as prefixes of strings, adjacent strings, comments, sets, bytes and floats.

// The crate `py_literal` 0.4 brings 25 packages, including one that needs a C compiler, accepts
// `02` as a number and does not refuse a key that occurs twice.
use crate::budget::Depth;
use crate::error::{ErrorKind, Quoted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Keeps escapes as written.
    Text(String),
    /// Of any size: sign and digits.
    Integer(String),
    Bool(bool),
    None,
    Tuple(Vec<Value>),
    List(Vec<Value>),
    /// In order, with duplicate keys.
    Dictionary(Vec<(Value, Value)>),
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Bool(_) => "a boolean",
            Self::None => "None",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dictionary(_) => "a dictionary",
        }
    }
}

/// Reads one literal, with white space around it. With `long_integers`, integers may end in `L`, as
/// in Python 2.
pub(super) fn parse(text: &str, long_integers: bool) -> Result<Value, ErrorKind> {
    let mut parser = Parser { text, at: 0, long_integers };
    let value = parser.value(Depth::default())?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.expected("the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    long_integers: bool,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']).len();
        self.rest().chars().next()
    }

    fn take(&mut self, c: char) -> bool {
        let is_next = self.peek() == Some(c);
        self.at += if is_next { c.len_utf8() } else { 0 };
        is_next
    }

    fn expected(&mut self, expected: &'static str) -> ErrorKind {
        let found = match self.peek() {
            None => "the end".into(),
            Some(c) if is_word(c) => {
                let rest = self.rest();
                Quoted(&rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]).to_string()
            }
            Some(c) => Quoted(c.encode_utf8(&mut [0; 4])).to_string(),
        };
        ErrorKind::BadLiteral { offset: self.at, expected, found }
    }

    fn value(&mut self, depth: Depth) -> Result<Value, ErrorKind> {
        const EXPECTED: &str = "a string, an integer, True, False, None, '(', '[' or '{'";
        match self.peek() {
            Some(quote @ ('\'' | '"')) => self.string(quote).map(Value::Text),
            Some('(') => self.parentheses(depth),
            Some('[') => {
                self.at += 1;
                Ok(Value::List(self.items(']', depth)?.0))
            }
            Some('{') => self.dictionary(depth),
            Some('-' | '0'..='9') => self.integer().map(Value::Integer),
            Some(c) if is_word(c) => {
                let rest = self.rest();
                let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
                let value = match word {
                    "True" => Value::Bool(true),
                    "False" => Value::Bool(false),
                    "None" => Value::None,
                    _ => return Err(self.expected(EXPECTED)),
                };
                self.at += word.len();
                Ok(value)
            }
            _ => Err(self.expected(EXPECTED)),
        }
    }

    /// A tuple, or a value in parentheses: the comma decides.
    fn parentheses(&mut self, depth: Depth) -> Result<Value, ErrorKind> {
        self.at += 1;
        let (mut items, commas) = self.items(')', depth)?;
        Ok(match items.pop() {
            Some(only) if commas == 0 => only,
            last => {
                items.extend(last);
                Value::Tuple(items)
            }
        })
    }

    fn items(&mut self, close: char, depth: Depth) -> Result<(Vec<Value>, usize), ErrorKind> {
        let depth = depth.deeper()?;
        let mut items = Vec::new();
        let mut commas = 0;
        while !self.take(close) {
            if commas < items.len() {
                return Err(self.expected(if close == ')' { "',' or ')'" } else { "',' or ']'" }));
            }
            items.push(self.value(depth)?);
            commas += usize::from(self.take(','));
        }
        Ok((items, commas))
    }

    fn dictionary(&mut self, depth: Depth) -> Result<Value, ErrorKind> {
        self.at += 1;
        let depth = depth.deeper()?;
        let mut entries = Vec::new();
        let mut commas = 0;
        while !self.take('}') {
            if commas < entries.len() {
                return Err(self.expected("',' or '}'"));
            }
            let key = self.value(depth)?;
            if !self.take(':') {
                return Err(self.expected("':'"));
            }
            entries.push((key, self.value(depth)?));
            commas += usize::from(self.take(','));
        }
        Ok(Value::Dictionary(entries))
    }

    fn string(&mut self, quote: char) -> Result<String, ErrorKind> {
        let start = self.at + 1;
        let mut escaped = false;
        for (i, c) in self.text[start..].char_indices() {
            match c {
                '\n' | '\r' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == quote => {
                    self.at = start + i + 1;
                    return Ok(self.text[start..start + i].to_owned());
                }
                _ => {}
            }
        }
        Err(self.expected("a string with its end on the same line"))
    }

    fn integer(&mut self) -> Result<String, ErrorKind> {
        const EXPECTED: &str = "an integer in plain digits";
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let digits = rest[sign..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - sign);
        let (number, after) = rest.split_at(sign + digits);
        let long = usize::from(self.long_integers && after.starts_with('L'));
        // 02 is an error for Python, which once read it as an octal number; 00 is not.
        let figures = &number[sign..];
        let is_octal = figures.starts_with('0') && !figures.trim_matches('0').is_empty();
        if digits == 0 || is_octal || after[long..].starts_with(|c| is_word(c) || c == '.') {
            return Err(self.expected(EXPECTED));
        }
        self.at += number.len() + long;
        Ok(number.to_owned())
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integers(values: &[&str]) -> Vec<Value> {
        values.iter().map(|value| Value::Integer((*value).into())).collect()
    }

    #[test]
    fn literals_parse_as_in_python() {
        let text = |text: &str| Value::Text(text.into());
        for (literal, value) in [
            (" (1, 2)\n", Value::Tuple(integers(&["1", "2"]))),
            ("(6,)", Value::Tuple(integers(&["6"]))),
            ("(6)", Value::Integer("6".into())),
            ("((6),)", Value::Tuple(integers(&["6"]))),
            ("((6,))", Value::Tuple(integers(&["6"]))),
            ("( )", Value::Tuple(vec![])),
            ("[6]", Value::List(integers(&["6"]))),
            ("[6,]", Value::List(integers(&["6"]))),
            ("[]", Value::List(vec![])),
            ("{}", Value::Dictionary(vec![])),
            ("{'a':\tTrue , \"b\":None,}", {
                let entries = vec![(text("a"), Value::Bool(true)), (text("b"), Value::None)];
                Value::Dictionary(entries)
            }),
            ("'it\\'s'", text("it\\'s")),
            ("\"it's\"", text("it's")),
            ("'é'", text("é")),
            ("-12", Value::Integer("-12".into())),
            ("00", Value::Integer("00".into())),
        ] {
            assert_eq!(parse(literal, false).unwrap(), value, "{literal}");
        }
        assert_eq!(parse("12L", true).unwrap(), Value::Integer("12".into()));
    }

    #[test]
    fn everything_else_is_an_error() {
        for literal in [
            "",
            "Falsehood",
            "true",
            "(",
            "(1",
            "(1 2)",
            "(1,,)",
            "(,)",
            "[,]",
            "{,}",
            "{'a'}",
            "{'a': }",
            "{'a': 1 'b': 2}",
            "{'a': 1,, }",
            "{'a' 1}",
            "1 2",
            "'a",
            "'a\n'",
            "'a'b",
            "'a' 'b'",
            "u'a'",
            "b'a'",
            "02",
            "0x2",
            "1_0",
            "1.0",
            "1e3",
            "+1",
            "--1",
            "-",
            "1L",
            "1l",
            "1j",
            "1-1",
            "()()",
            "(1)*2",
            "{1, 2}",
            "{'a': 1]",
            "# c",
            "1 # c",
            "x()",
            "\0",
            "1\0",
            "é",
        ] {
            let error = parse(literal, false).unwrap_err();
            assert!(matches!(error, ErrorKind::BadLiteral { .. }), "{literal}: {error}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth| format!("{}{}", "(".repeat(depth), ")".repeat(depth));
        assert!(parse(&nested(100), false).is_ok());
        for hostile in [nested(101), nested(1 << 20), "[{'a':".repeat(1 << 18)] {
            let error = parse(&hostile, false).unwrap_err();
            assert!(matches!(error, ErrorKind::NestedTooDeep { limit: 100 }), "{error}");
        }
    }

    #[test]
    fn an_error_has_the_position_and_the_expected_value() {
        let error = parse("{'fortran_order': Falsehood}", false).unwrap_err();
        let expected = "the .npy header, at its byte 18: expected a string, an integer, True, \
                        False, None, '(', '[' or '{', found \"Falsehood\"";
        assert_eq!(error.to_string(), expected);
    }
}
