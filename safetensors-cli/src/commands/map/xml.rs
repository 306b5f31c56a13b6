//! Text in SVG and HTML.

/// Escapes text for XML and HTML, between tags and in quoted attributes. The text must be
/// printable, see [`text`](crate::terminal::text): XML has no escape for control characters.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_be_a_tag() {
        let hostile = r#"</title><script src="//x">&amp;"#;
        let expected = "&lt;/title&gt;&lt;script src=&quot;//x&quot;&gt;&amp;amp;";
        assert_eq!(escape(hostile), expected);
    }
}
