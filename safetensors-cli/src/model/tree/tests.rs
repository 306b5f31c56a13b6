//! Tests of trees, each shown as lines of labels.

use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};

use super::*;

/// Returns a tree as lines of indented labels, with `×n` for folded layers.
fn lines(names: &[&str], sort: Sort) -> Vec<String> {
    fn write(trees: &[Tree<'_>], depth: usize, lines: &mut Vec<String>) {
        for tree in trees {
            let copies =
                if tree.copies > 1 { format!(" ×{}", tree.copies) } else { String::new() };
            lines.push(format!("{}{}{copies}", "  ".repeat(depth), tree.label));
            write(tree.children(), depth + 1, lines);
        }
    }
    let one = [0_u8; 2];
    let two = [0_u16; 1];
    let tensors = names.iter().map(|&name| {
        let view = TensorView::from_slice(&[2], &one).unwrap();
        (name, if name.ends_with('!') { TensorView::from_slice(&[1], &two).unwrap() } else { view })
    });
    let file = serialize(tensors, &SaveOptions::new()).unwrap();
    let archive = SafeTensors::parse(file).unwrap();
    let mut tensors: Vec<_> = archive.tensors().collect();
    let trees = Tree::build(&mut tensors, &Parameters::default(), sort, true);
    assert_eq!(trees.iter().map(Tree::all).sum::<Totals>(), Totals::sum(tensors.iter().copied()));
    let mut lines = Vec::new();
    write(&trees, 0, &mut lines);
    lines
}

#[test]
fn layers_that_are_alike_are_one() {
    let mut names: Vec<String> = Vec::new();
    for i in 0..12 {
        names.push(format!("m.layers.{i}.q.weight"));
        names.push(format!("m.layers.{i}.norm"));
    }
    names.push("m.layers.3.extra".into());
    names.push("head".into());
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let expected = [
        "head",
        "m.layers",
        "  0…2, 4…11 ×11",
        "    norm",
        "    q.weight",
        "  3",
        "    extra",
        "    norm",
        "    q.weight",
    ];
    assert_eq!(lines(&names, Sort::Name), expected);
}

#[test]
fn layers_of_one_tensor_and_nested_layers_are_folded() {
    assert_eq!(lines(&["e.0.w", "e.1.w", "e.2.w"], Sort::Name), ["e.0…2.w ×3"]);
    assert_eq!(
        lines(&["e.0.x.0", "e.0.x.1", "e.1.x.0", "e.1.x.1"], Sort::Name),
        ["e.0…1.x.0…1 ×4"]
    );
    // Another dtype, or another name, is another kind of layer.
    assert_eq!(lines(&["0.w", "1.w!", "2.v"], Sort::Name), ["0.w", "1.w!", "2.v"]);
    assert_eq!(lines(&["00", "01", "1"], Sort::Name), ["00", "01", "1"]);
}

#[test]
fn a_tensor_may_have_the_name_of_a_module() {
    assert_eq!(lines(&["a.b", "a", "a.c"], Sort::Name), ["a", "a", "  b", "  c"]);
    assert_eq!(lines(&["", ".", ".."], Sort::Name).len(), 4);
}

#[test]
fn slashes_are_separators_where_they_are_more() {
    assert_eq!(lines(&["p/a.x/k", "p/a.x/b", "q/r"], Sort::Name), ["p/a.x", "  b", "  k", "q/r"]);
}

#[test]
fn hostile_depth_is_one_label() {
    let deep = "a.".repeat(100_000);
    let shown = lines(&[&deep, "b"], Sort::Size);
    assert_eq!((shown.len(), shown[0].len()), (2, deep.len()));
}

#[test]
fn parts_are_joined_as_they_were_split() {
    assert_eq!(
        lines(&["p/0.5/k", "p/1.5/k", "q/r"], Sort::Name),
        ["p", "  0.5/k", "  1.5/k", "q/r"]
    );
    assert_eq!(lines(&["p/0/k", "p/1/k"], Sort::Name), ["p/0…1/k ×2"]);
}
