//! `safetensors map`: the content of the page, and checkpoints that cannot be drawn.

use crate::fixtures::*;
use crate::page::data;

#[test]
fn other_endings_and_empty_checkpoints_are_refused() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for name in ["map.svg", "map.PNG", "map"] {
        let line = format!("map model.safetensors -o {name}");
        dir.run(&line).fails(2, "name a file that ends in .html");
        assert!(!dir.at(name).exists());
    }
    raw_file(&dir.at("none.safetensors"), "{}", 0);
    dir.run("map none.safetensors -o map.html").fails(1, "nothing to draw");
    assert!(!dir.at("map.html").exists());
}

#[test]
fn the_same_file_gives_the_same_page_on_standard_output_too() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let map = |output: &str| {
        let args = ["map", "model.safetensors", "-o", output];
        dir.run(&args).quiet().get_output().stdout.clone()
    };
    let page = map("-");
    for name in ["map.html", "map.HTM"] {
        assert!(text(&map(name)).starts_with(&format!("{name}: a page of 2 tensors, ")));
        assert_eq!(dir.read(name), page);
    }
}

/// A checkpoint of BF16 tensors with these shapes.
fn checkpoint<N: AsRef<str>>(dir: &Path, tensors: impl IntoIterator<Item = (N, [usize; 2])>) {
    let data = vec![0_u8; 1 << 16];
    let tensors: Vec<_> = tensors.into_iter().collect();
    let views = tensors.iter().map(|(name, shape)| {
        let bytes = &data[..shape.iter().product::<usize>() * 2];
        (name, TensorView::new(Dtype::BF16, shape, bytes).unwrap())
    });
    save(dir.at("m.safetensors"), views, &quick()).unwrap();
}

#[test]
fn one_dtype_is_coloured_by_module_and_layers_share_a_colour() {
    let dir = temp_dir();
    let layer = |i| {
        [("mlp.up", [64, 16]), ("mlp.down", [16, 64]), ("attn", [16, 40])]
            .map(|(name, shape)| (format!("model.layers.{i}.{name}.weight"), shape))
    };
    let llama = (0..12).flat_map(layer).chain([("lm_head.weight".to_owned(), [64, 16])]);
    checkpoint(dir.path(), llama);
    let shown = data(dir.path(), &["m.safetensors"]);
    let groups = serde_json::json!([
        ["mlp.down.weight", 24576.0],
        ["mlp.up.weight", 24576.0],
        ["attn.weight", 15360.0],
        ["lm_head.weight", 2048.0],
    ]);
    assert_eq!((&shown["by_module"], &shown["groups"]), (&true.into(), &groups));
    assert_eq!(shown["dtypes"], serde_json::json!([["BF16", 37, 33280.0, 66560.0]]));
    let by_dtype = data(dir.path(), &["m.safetensors", "--colour", "dtype"]);
    assert_eq!((&by_dtype["by_module"], &by_dtype["groups"]), (&false.into(), &groups));
    assert_eq!(data(dir.path(), &["m.safetensors", "--color", "module"]), shown);
    // Of a hundred bytes, one or two have another dtype.
    for (others, by_module) in [(1, true), (2, false)] {
        let shapes = [[others], [50], [50 - others]];
        let dtypes = [Dtype::I8, Dtype::U8, Dtype::U8];
        let view = |i: usize| TensorView::new(dtypes[i], &shapes[i], &[0; 50][..shapes[i][0]]);
        let tensors = ["few", "a", "b"].into_iter().enumerate();
        let tensors = tensors.map(|(i, name)| (name, view(i).unwrap()));
        save(dir.at("m.safetensors"), tensors, &quick()).unwrap();
        assert_eq!(data(dir.path(), &["m.safetensors"])["by_module"], by_module, "{others}");
    }
}
