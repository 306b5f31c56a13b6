//! `safetensors map`: pictures are made, and show the right content.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Dtype, SaveOptions, TensorView, save};

use crate::fixtures::*;

#[test]
fn svg_has_modules_legend_and_total() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let map = |picture: &str| {
        let mut command = safetensors();
        command.current_dir(dir.path()).arg("map").arg(&path).args(["-o", picture]);
        let written = format!("{picture}: a picture of 2 tensors, ");
        let told = predicate::str::starts_with(written).and(predicate::str::ends_with("kB\n"));
        command.assert().success().stdout(told).stderr("");
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
    wrong.assert().code(2).stderr(predicate::str::contains("must end in .svg, .png or .html"));
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
    for (format, file) in [("svg", "map.svg"), ("png", "map.png"), ("html", "map.htm")] {
        assert!(text(&map(&["-o", file])).starts_with(file));
        assert_eq!(map(&["-o", "-", "--format", format]), fs::read(dir.path().join(file)).unwrap());
        map(&["-o", "picture", "--format", format, "--force"]);
        assert_eq!(
            fs::read(dir.path().join("picture")).unwrap(),
            fs::read(dir.path().join(file)).unwrap()
        );
    }
    assert_eq!(map(&["-o", "-"]), fs::read(dir.path().join("map.svg")).unwrap());
}

/// A checkpoint of BF16 tensors with these shapes.
fn checkpoint<N: AsRef<str>>(dir: &Path, tensors: impl IntoIterator<Item = (N, [usize; 2])>) {
    let data = vec![0_u8; 1 << 16];
    let tensors: Vec<_> = tensors.into_iter().collect();
    let views = tensors.iter().map(|(name, shape)| {
        let bytes = &data[..shape.iter().product::<usize>() * 2];
        (name, TensorView::new(Dtype::BF16, shape, bytes).unwrap())
    });
    save(dir.join("m.safetensors"), views, &SaveOptions::new().durable(false)).unwrap();
}

/// The picture of a checkpoint, as SVG.
fn svg(dir: &Path, args: &[&str]) -> String {
    let args = [&["map", "m.safetensors", "-o", "-"], args].concat();
    text(&run_in(dir, &args).success().get_output().stdout).to_owned()
}

fn llama() -> impl Iterator<Item = (String, [usize; 2])> {
    let layer = |i| {
        [("mlp.up", [64, 16]), ("mlp.down", [16, 64]), ("attn", [16, 40])]
            .map(|(name, shape)| (format!("model.layers.{i}.{name}.weight"), shape))
    };
    (0..12).flat_map(layer).chain([("lm_head.weight".to_owned(), [64, 16])])
}

#[test]
fn one_dtype_is_coloured_by_module_and_layers_share_an_area() {
    let dir = temp_dir();
    checkpoint(dir.path(), llama());
    let picture = svg(dir.path(), &[]);
    for shown in [
        ">37 tensors, 33,280 parameters, 66.6 kB, BF16<",
        ">model.layers.0…11<",
        ">mlp.up.weight  36.9%<",
        ">attn.weight  23.1%<",
        "<title>model.layers.0…11.mlp.up.weight\n12 × BF16 [64, 16]\n12,288 parameters, 24.6 kB, 36.92%</title>",
        "<title>model.layers.0…11.mlp\n24 tensors\n24,576 parameters, 49.2 kB, 73.85%</title>",
    ] {
        assert!(picture.contains(shown), "no {shown} in {picture}");
    }
    let by_dtype = svg(dir.path(), &["--colour", "dtype"]);
    assert!(by_dtype.contains(">BF16  66.6 kB, 100.0%<"), "{by_dtype}");
    assert_eq!(svg(dir.path(), &["--color", "module"]), picture);
}

#[test]
fn a_picture_of_a_hundred_thousand_tensors_is_small() {
    let dir = temp_dir();
    // No two of a module are alike, so that none are folded. One in a hundred is large.
    let shape = |i: usize| [1 + i % 97, if i.is_multiple_of(100) { 100 } else { 1 }];
    checkpoint(dir.path(), (0..100_000).map(|i| (format!("{}.m{i}", i % 7), shape(i))));
    let picture = svg(dir.path(), &[]);
    let rects = picture.matches("<rect").count();
    assert!((300..8000).contains(&rects), "{rects}");
    assert!(picture.len() < 2_000_000, "{}", picture.len());
    assert!(picture.contains(" small tensors\n"), "the others are told of");
    checkpoint(dir.path(), (0..100_000).map(|i| (format!("m{i}"), [1, 1])));
    let picture = svg(dir.path(), &[]);
    assert!(picture.contains("<title>100,000 small tensors\n"), "{picture}");
}

/// The font of PNG pictures has Latin letters only. Others must not become the same sign.
#[test]
fn names_in_other_scripts_differ_in_a_png() {
    let dir = temp_dir();
    let png = |name: &str| {
        checkpoint(dir.path(), [(name, [8, 8])]);
        let args = ["map", "m.safetensors", "-o", "-", "--format", "png", "--title", "t"];
        run_in(dir.path(), &args).success().get_output().stdout.clone()
    };
    assert_ne!(png("层"), png("权"));
    assert_eq!(png("层"), png("Ceng"));
}
