//! `safetensors manual`: the manual pages.

use std::collections::BTreeMap;

use crate::fixtures::*;

/// The pages by their names.
fn pages(dir: &Path) -> BTreeMap<String, String> {
    let pages = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    pages
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn every_command_has_a_page() {
    let dir = temp_dir();
    let written = starts_with("share/man1: ").and(ends_with(" pages\n"));
    dir.run("manual share/man1").success().stdout(written).stderr("");
    let first = pages(&dir.at("share/man1"));
    for name in ["safetensors", "safetensors-inspect", "safetensors-metadata-set"] {
        assert!(first.contains_key(&format!("{name}.1")), "{name}");
    }
    // Neither `help` nor `manual` itself.
    assert!(
        !first.keys().any(|name| name.contains("help") || name.contains("-manual")),
        "{first:?}"
    );
    for (name, page) in &first {
        let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(&sections[..3], ["NAME", "SYNOPSIS", "DESCRIPTION"], "{name}");
        assert!(sections.contains(&"OPTIONS") && sections.contains(&"EXAMPLES"), "{name}");
        assert_eq!(sections.last(), Some(&"\"EXIT STATUS\""), "{name}");
        assert!(page.contains(&format!("safetensors {}", env!("CARGO_PKG_VERSION"))), "{name}");
        // An example can be copied: it has a separate line, and its hyphens stay hyphens.
        let command = name.trim_end_matches(".1").replace('-', " ");
        assert!(page.contains(&format!("\n{command} ")), "{name}: {page}");
        // Each option is explained.
        assert!(!page.contains("\\fR\n\n.TP"), "{name}: {page}");
        assert!(is_plain(page) && !page.contains("target: "), "{name}");
    }
    assert!(first["safetensors.1"].contains(".SH ENVIRONMENT\n.nf\nSAFETENSORS_THREADS "));
    assert!(first["safetensors-verify.1"].contains("\\-\\-strict"));
    // The synopsis is the usage, with the values of options.
    let sign = &first["safetensors-sign.1"];
    let synopsis = "safetensors sign\\fR [OPTIONS] \\-\\-key <FILE> <PATH>";
    assert!(sign.contains(synopsis), "{sign}");

    // The pages replace equal old ones.
    dir.write("share/man1/safetensors.1", "old");
    let error = "error: share/man1 exists: it has ";
    for dry_run in [&[][..], &["-n"]] {
        let run = dir.run(&[&["manual", "share/man1"], dry_run].concat()).code(1);
        run.stdout("").stderr(starts_with(error));
    }
    dir.run("manual share/man1 --force").success();
    assert_eq!(pages(&dir.at("share/man1")), first);
}

#[test]
fn a_place_that_cannot_have_pages_is_named() {
    let dir = temp_dir();
    dir.write("file", "");
    let error = starts_with("error: file").and(contains("\n").count(1));
    dir.run("manual file").code(1).stdout("").stderr(error);
    dir.run("manual").fails(2, "<DIR>");
    assert_eq!(dir.read("file"), b"");
}
