//! `safetensors map`: pictures are made, and show the right content.

use std::fs;

use predicates::prelude::*;

use crate::fixtures::*;

#[test]
fn svg_has_modules_legend_and_total() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let map = |picture: &str| {
        let mut command = safetensors();
        command.current_dir(dir.path()).arg("map").arg(&path).args(["-o", picture]);
        command.assert().success().stdout("").stderr("");
        fs::read(dir.path().join(picture)).unwrap()
    };
    let svg = map("map.svg");
    let shown = text(&svg);
    assert!(shown.starts_with("<svg xmlns=") && shown.ends_with("</svg>\n"));
    for expected in [
        ">model.safetensors<",
        ">2 tensors, 8 parameters, 40 B<",
        ">embed.weight<",
        ">[2, 3]<",
        ">mask<",
        ">F32  24 B, 60.0%<",
    ] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
    assert_eq!(svg, map("again.svg"), "the same file gives the same picture");
    let png = map("map.PNG");
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.ends_with(b"IEND\xae\x42\x60\x82"));
}

#[test]
fn hostile_names_are_text() {
    let dir = temp_dir();
    let path = dir.path().join("hostile.safetensors");
    raw_file(&path, r#"{"<script>&\u001b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1);
    safetensors()
        .current_dir(dir.path())
        .arg("map")
        .arg(&path)
        .args(["-o", "map.svg"])
        .assert()
        .success();
    let svg = fs::read(dir.path().join("map.svg")).unwrap();
    let shown = text(&svg);
    assert!(
        is_plain(shown)
            && !shown.contains("<script>")
            && shown.contains(r"&lt;script&gt;&amp;\u{1b}"),
        "{shown}"
    );
}

#[test]
fn what_cannot_be_drawn_is_an_error() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let picture = |name: &str| dir.path().join(name);
    let mut wrong = safetensors();
    wrong.arg("map").arg(&path).arg("-o").arg(picture("map.gif"));
    wrong.assert().code(2).stderr(predicate::str::contains("must end in .svg or .png"));
    let none = dir.path().join("none.safetensors");
    raw_file(&none, "{}", 0);
    let mut nothing = safetensors();
    nothing.arg("map").arg(&none).arg("-o").arg(picture("map.svg"));
    nothing.assert().code(1).stderr(predicate::str::contains("nothing to draw"));
    assert!(!picture("map.svg").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        assert!(
            std::process::Command::new("mkfifo")
                .arg(picture("fifo.png"))
                .status()
                .unwrap()
                .success()
        );
        let mut special = safetensors();
        special.arg("map").arg(&path).arg("-o").arg(picture("fifo.png"));
        let next = predicate::str::contains(
            "found a special file; `-o - > FILE` can write to such a file",
        );
        special.assert().code(1).stderr(next);
        assert!(std::fs::metadata(picture("fifo.png")).unwrap().file_type().is_fifo());
    }
}

#[test]
fn a_picture_goes_to_standard_output_too() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let map = |args: &[&str]| {
        let mut command = safetensors();
        command.current_dir(dir.path()).arg("map").arg(&path).args(args);
        command.assert().success().stderr("").get_output().stdout.clone()
    };
    for (format, file) in [("svg", "map.svg"), ("png", "map.png")] {
        assert!(map(&["-o", file]).is_empty());
        assert_eq!(map(&["-o", "-", "--format", format]), fs::read(dir.path().join(file)).unwrap());
        map(&["-o", "picture", "--format", format]);
        assert_eq!(
            fs::read(dir.path().join("picture")).unwrap(),
            fs::read(dir.path().join(file)).unwrap()
        );
    }
    assert_eq!(map(&["-o", "-"]), fs::read(dir.path().join("map.svg")).unwrap());
}
