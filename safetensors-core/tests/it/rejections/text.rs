//! The header's text: strict JSON, an object, and no deeper nesting than the format allows.

use safetensors_core::error::JsonProblem;

use super::{file, rejects};
use crate::support::*;

/// The offset of the only occurrence of `part` in `header`.
fn at(header: &str, part: &str) -> usize {
    assert_eq!(header.matches(part).count(), 1, "{part}");
    header.find(part).unwrap()
}

fn json(offset: usize, problem: JsonProblem) -> ErrorKind {
    ErrorKind::Json { offset, problem }
}

#[test]
fn not_an_object() {
    for (header, found, says) in [
        ("[]", Some(b'['), "'['"),
        ("\"x\"", Some(b'"'), "'\"'"),
        ("1", Some(b'1'), "'1'"),
        ("null", Some(b'n'), "'n'"),
        ("true", Some(b't'), "'t'"),
        ("}", Some(b'}'), "'}'"),
        (" \t\r\n", None, "nothing"),
        ("\0{}", Some(0), "0x00"),
        ("\u{b}{}", Some(0x0b), "0x0b"),
        // White space in Unicode, but not in JSON.
        ("\u{a0}{}", Some(0xc2), "0xc2"),
        // A character that begins with the same byte as the byte-order mark.
        ("\u{ff5b}}", Some(0xef), "0xef"),
    ] {
        rejects(header, 0, None, ErrorKind::NotAnObject { found }, &["not a JSON object", says]);
    }
}

#[test]
fn trailing_comma() {
    for header in
        [r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}@,}"#, r#"{"__metadata__":{}@,}"#]
    {
        let (offset, header) = (at(header, "@"), header.replace('@', ""));
        rejects(header, 1, None, json(offset, JsonProblem::TrailingComma), &["a trailing comma"]);
    }
    let in_metadata = r#"{"__metadata__":{"k":"v",}}"#;
    let kind = json(at(in_metadata, ",}"), JsonProblem::TrailingComma);
    rejects(in_metadata, 0, None, kind, &["a trailing comma"]);
    for header in [
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]@,}}"#,
        r#"{"a":{"dtype":"U8","shape":[1@,],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1@ , ]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0@,]}}"#,
    ] {
        let (offset, header) =
            (at(header, "@") + usize::from(header.contains("@ ")), header.replace('@', ""));
        let kind = json(offset, JsonProblem::TrailingComma);
        rejects(header, 1, Some("a"), kind, &["a trailing comma"]);
    }
}

#[test]
fn missing_and_doubled_punctuation() {
    for (header, tensor, offset, expected, found) in [
        (r#"{,}"#, None, 1, "a name in quotes", b','),
        (r#"{a:1}"#, None, 1, "a name in quotes", b'a'),
        (r#"{'a':1}"#, None, 1, "a name in quotes", b'\''),
        (r#"{"a" 1}"#, Some("a"), 5, "a colon", b'1'),
        (r#"{"a"=1}"#, Some("a"), 4, "a colon", b'='),
        (r#"{"__metadata__":{},,}"#, None, 19, "a name in quotes", b','),
        (r#"{"__metadata__":{}"b"}"#, None, 18, "a comma or the closing brace of the header", b'"'),
        (
            r#"{"__metadata__":{"k":"v" "l":"w"}}"#,
            None,
            25,
            "a comma or the closing brace of __metadata__",
            b'"',
        ),
        (
            r#"{"__metadata__":{"k":"v"]}"#,
            None,
            24,
            "a comma or the closing brace of __metadata__",
            b']',
        ),
        (
            r#"{"a":{"dtype":"U8";}}"#,
            Some("a"),
            18,
            "a comma or the closing brace of an entry",
            b';',
        ),
        (
            r#"{"a":{"shape":[1 2]}}"#,
            Some("a"),
            17,
            "a comma or the closing bracket of shape",
            b'2',
        ),
        (r#"{"a":{"shape":[,1]}}"#, Some("a"), 15, "a number", b','),
        (r#"{"a":{"shape":[+1]}}"#, Some("a"), 15, "a number", b'+'),
        (r#"{"a":{"shape":[NaN]}}"#, Some("a"), 15, "a number", b'N'),
        (
            r#"{"a":{"shape":[1]]}}"#,
            Some("a"),
            17,
            "a comma or the closing brace of an entry",
            b']',
        ),
        (r#"{"a":é}"#, Some("a"), 5, "an object", 0xc3),
    ] {
        let kind = json(offset, JsonProblem::Unexpected { expected, found });
        let says = if found.is_ascii() {
            format!("{:?}", char::from(found))
        } else {
            format!("{found:#04x}")
        };
        let says = [&says, expected, &offset.to_string()];
        rejects(header, 0, tensor, kind, &says);
    }
}

#[test]
fn comment() {
    for (header, tensor) in [
        (r#"{@/*c*/}"#, None),
        (r#"{"__metadata__":@/*c*/{}}"#, None),
        (r#"{"__metadata__":{"k":@/*c*/"v"}}"#, None),
        (r#"{"__metadata__":{} @// c"#, None),
        (r#"{"a":@/*c*/{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, Some("a")),
        (r#"{"a":{"dtype":@/*c*/"U8","shape":[1],"data_offsets":[0,1]}}"#, Some("a")),
        (r#"{"a":{"dtype":"U8","shape":@/*c*/[1],"data_offsets":[0,1]}}"#, Some("a")),
        (r#"{"a":{"dtype":"U8","shape":[@/*c*/1],"data_offsets":[0,1]}}"#, Some("a")),
        (
            r#"{"a":{"dtype":"U8","shape":[1],@//
            "data_offsets":[0,1]}}"#,
            Some("a"),
        ),
    ] {
        let (offset, header) = (at(header, "@"), header.replace('@', ""));
        let kind = json(offset, JsonProblem::Comment);
        let says = ["a comment", &offset.to_string()];
        rejects(header, 1, tensor, kind, &says);
    }
}

#[test]
fn byte_order_mark() {
    rejects("\u{feff}{}", 0, None, json(0, JsonProblem::ByteOrderMark), &["a byte-order mark"]);
    rejects(" \u{feff}{}", 0, None, json(1, JsonProblem::ByteOrderMark), &["byte 1"]);
    rejects("{}\u{feff}", 0, None, json(2, JsonProblem::AfterEnd(0xef)), &["0xef"]);
}

#[test]
fn padding_other_than_white_space() {
    for byte in [0, 1, 0x0b, 0x0c, 0x7f, b'{', b'}', b',', b'/', b'x', b'0'] {
        let header = [b"{}  ", &[byte][..]].concat();
        rejects(
            header,
            0,
            None,
            json(4, JsonProblem::AfterEnd(byte)),
            &["only white space", &format!("{byte:#04x}")],
        );
    }
    rejects(b"\0\0{}", 0, None, ErrorKind::NotAnObject { found: Some(0) }, &["0x00"]);
    let between = json(1, JsonProblem::Unexpected { expected: "a name in quotes", found: 0 });
    rejects(b"{\0}", 0, None, between, &["0x00", "a name in quotes"]);
    rejects("{}{}", 0, None, json(2, JsonProblem::AfterEnd(b'{')), &["0x7b"]);
}

#[test]
fn control_character_in_a_string() {
    for byte in 0..0x20 {
        let kind = |offset| json(offset, JsonProblem::ControlCharacter(byte));
        let says = [&format!("U+{byte:04X}"), "inside a string"];
        let header = [b"{\"a", &[byte][..], b"\":1}"].concat();
        rejects(header, 0, None, kind(3), &says.map(|part| part as &str));
        let header = [b"{\"__metadata__\":{\"k\":\"\\n", &[byte][..], b"\"}}"].concat();
        rejects(header, 0, None, kind(24), &says.map(|part| part as &str));
    }
}

#[test]
fn lone_surrogate() {
    for escapes in [
        r"\ud800",
        r"\uDBFF",
        r"\udc00",
        r"\uDFFF",
        r"\ud800x",
        r"\ud800\n",
        r"\ud800\u0041",
        r"\ud800\ud800",
        r"\ud83d\ue000",
        r"\udc00\ud800",
    ] {
        let header =
            format!(r#"{{"ab{escapes}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let kind = json(4, JsonProblem::LoneSurrogate);
        rejects(header, 1, None, kind, &["half of a surrogate pair", "byte 4"]);
    }
}

#[test]
fn bad_escape() {
    for escape in [
        r"\x41",
        r"\a",
        r"\0",
        r"\'",
        r"\U0041",
        r"\é",
        r"\u",
        r"\u12",
        r"\u12g4",
        r"\u+041",
        r"\u 041",
        r"\u00é",
        r"\ud83d\u",
        r"\ud83d\udxyz",
        r"\u{41}",
    ] {
        let header = format!(r#"{{"ab{escape}":1}}"#);
        let kind = json(4, JsonProblem::BadEscape);
        rejects(header, 0, None, kind, &["an unknown or incomplete escape", "byte 4"]);
    }
}

/// The text is cut at every byte, and the length field matches the rest.
#[test]
fn text_cut_off_anywhere() {
    // The header has metadata, escapes, white space, long numbers, and fields in another order.
    let whole = concat!(
        "{ \"__metadata__\" : {\"k\":\"v\", \"\\u00e9\\n\":\"\\ud83d\\ude00\"},\n",
        "\"a\\\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},\n",
        "\"c\":{\"data_offsets\":[12,13],\"shape\":[],\"dtype\":\"U8\"}}"
    );
    assert!(SafeTensors::parse(file(whole, 13)).is_ok());
    for len in 0..whole.len() {
        let error = SafeTensors::parse(file(&whole[..len], 13)).unwrap_err();
        let cut = match error.kind() {
            ErrorKind::NotAnObject { found: None } => len == 0,
            ErrorKind::Json { problem: JsonProblem::UnexpectedEnd { .. }, offset } => {
                *offset == len
            }
            ErrorKind::Json {
                problem: JsonProblem::BadEscape | JsonProblem::LoneSurrogate,
                ..
            } => whole[..len].rfind('\\').is_some_and(|start| start + 12 > len),
            _ => false,
        };
        assert!(cut, "{:?}: {error}", &whole[..len]);
    }
}

#[test]
fn the_error_of_a_cut_text_has_the_expected_token() {
    for (header, tensor, expected) in [
        ("{", None, "a name in quotes"),
        ("{\"a", None, "the closing quote of a string"),
        ("{\"a\"", Some("a"), "a colon"),
        ("{\"a\":", Some("a"), "an object"),
        ("{\"a\":{\"dtype\":", Some("a"), "a string"),
        ("{\"a\":{\"shape\":", Some("a"), "an array"),
        ("{\"a\":{\"shape\":[", Some("a"), "a number"),
        ("{\"a\":{\"shape\":[1", Some("a"), "a comma or the closing bracket of shape"),
        ("{\"__metadata__\":", None, "an object"),
        ("{\"__metadata__\":{\"k\":", None, "a string"),
        ("{\"__metadata__\":{}", None, "a comma or the closing brace of the header"),
    ] {
        let kind = json(header.len(), JsonProblem::UnexpectedEnd { expected });
        let says = ["the end of the header", expected];
        rejects(header, 0, tensor, kind, &says);
    }
}

#[test]
fn nesting_deeper_than_the_format_allows() {
    let nested = r#"{"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}}"#;
    let kind = ErrorKind::TooDeep { offset: at(nested, "[1]") };
    rejects(nested, 1, Some("a"), kind, &["nested deeper", "byte 28"]);
    let nested = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[{},1]}}"#;
    let kind = ErrorKind::TooDeep { offset: at(nested, "{}") };
    rejects(nested, 1, Some("a"), kind, &["nested deeper", "byte 47"]);
}

/// So many brackets would exhaust the stack of a recursive parser.
#[test]
fn a_hundred_thousand_opening_brackets() {
    for bracket in ["[", "{\"a\":", "{"] {
        let many = bracket.repeat(100_000);
        let brackets_first = SafeTensors::parse(file(&many, 0)).unwrap_err();
        assert!(!brackets_first.to_string().is_empty());
        for before in [r#"{"a":"#, r#"{"__metadata__":"#, r#"{"__metadata__":{"k":"#] {
            assert!(
                SafeTensors::parse(file(format!("{before}{many}"), 0)).is_err(),
                "{before}{bracket}…"
            );
        }
        for (before, offset) in [(r#"{"a":{"shape":["#, 15), (r#"{"a":{"data_offsets":[0,"#, 24)] {
            let kind = ErrorKind::TooDeep { offset };
            rejects(format!("{before}{many}"), 0, Some("a"), kind, &[&format!("byte {offset}")]);
        }
    }
}
