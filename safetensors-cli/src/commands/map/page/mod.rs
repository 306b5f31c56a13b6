//! The page for a browser: one file with all parts.
//!
//! | file | content |
//! |---|---|
//! | `data` | the data of the page, as JSON |
//! | `page.css` | the looks, light and dark |
//! | `model.js` | the JSON as a tree, with identical layers folded |
//! | `treemap.js`, `rows.js` | the map; long lists with only their visible rows drawn |
//! | `page.js` | tabs, search, selection |
//!
//! Names and metadata are not trusted. They are JSON in an element that browsers do not run,
//! without any `<` that could end it, and are shown as text only. The policy allows this script and
//! style sheet, by their digests, and no other script or request.

mod data;

use std::collections::BTreeMap;
use std::io::{self, Write};

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

use super::groups::Groups;
use super::{Checkpoint, Tensor, Tree, palette, text};
use crate::input::other::Kind;
use crate::model::totals::{Parameters, Totals};

const STYLE: &str = include_str!("page.css");

/// The parts of the script, in one scope that is not the page's global one.
const SCRIPT: [&str; 4] = [
    include_str!("model.js"),
    include_str!("treemap.js"),
    include_str!("rows.js"),
    include_str!("page.js"),
];

const BODY: &str = include_str!("page.html");

pub(super) struct Page<'p> {
    pub(super) title: &'p str,
    pub(super) checkpoint: &'p Checkpoint,
    /// In the order of names.
    pub(super) tensors: &'p [Tensor<'p>],
    pub(super) trees: &'p [Tree<'p>],
    pub(super) dtypes: &'p BTreeMap<Kind<'p>, Totals>,
    pub(super) parameters: &'p Parameters<'p>,
    pub(super) groups: Option<&'p Groups>,
    /// Whether colours show modules at first.
    pub(super) is_by_module: bool,
}

impl Page<'_> {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let script = format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPT.concat());
        let style = format!("{STYLE}{}", self.colours());
        // In a title only these two begin anything.
        let title =
            text::escaped(self.title).to_string().replace('&', "&amp;").replace('<', "&lt;");
        writeln!(
            out,
            r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
{BODY}"#,
            policy(&script, &style)
        )?;
        write!(out, r#"<script type="application/json" id="data">"#)?;
        data::write(self, out)?;
        writeln!(out, "</script>\n<script>{script}</script>\n</body>\n</html>")
    }

    /// Returns the colours of modules and dtypes, as CSS classes.
    fn colours(&self) -> String {
        let groups = palette::GROUPS.into_iter().enumerate();
        let groups = groups.map(|(i, it)| format!(".g{i} {{ --fill: {} }}\n", palette::hex(it)));
        let dtypes = self.dtypes.keys().enumerate().map(|(i, it)| {
            let fill = palette::kind(*it);
            let ink = palette::hex(palette::ink_on(fill));
            format!(".d{i} {{ --fill: {}; --ink: {ink} }}\n", palette::hex(fill))
        });
        groups.chain(dtypes).collect()
    }
}

/// Allows only this script and this style sheet.
fn policy(script: &str, style: &str) -> String {
    let (script, style) = (source(script), source(style));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; \
         form-action 'none'"
    )
}

/// Allows exactly this script or style sheet.
fn source(text: &str) -> String {
    format!("'sha256-{}'", BASE64.encode(&Sha256::digest(text)))
}
