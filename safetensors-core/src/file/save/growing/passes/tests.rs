//! Loops that append to arrays of unlike rates, killed at each step.

use std::collections::BTreeMap;
use std::{fs, slice};

use crate::file::io::SafeTensors;
use crate::file::io::testing::directory_in_memory;
use crate::file::save::SaveOptions;
use crate::file::save::growing::GrowingWriter;
use crate::format::dtype::Dtype;
use crate::format::tensor::TensorView;

/// A loop that appends to arrays of unlike rates, each with the number of the pass.
type Pass = fn(&mut dyn FnMut(&str, u8), u8);

/// However the arrays grow, a run that continues after the last sync writes the file of an
/// uninterrupted run.
#[test]
fn a_sync_never_cuts_a_pass_in_two() {
    let passes: [Pass; 8] = [
        |push, i| push("time", i),
        |push, i| ["time", "heat", "flow"].iter().for_each(|name| push(name, i)),
        // Slow arrays before and after fast ones, also if the first pass does not have them.
        |push, i| {
            if i % 10 == 0 {
                push("snap", i);
            }
            push("time", i);
        },
        |push, i| {
            push("time", i);
            if i % 10 == 0 {
                push("snap", i);
            }
        },
        |push, i| {
            if i % 10 == 9 {
                push("snap", i);
            }
            push("time", i);
        },
        |push, i| {
            if i % 7 == 6 {
                push("snap", i);
            }
            push("time", i);
            push("heat", i);
            if i % 10 == 9 {
                push("mean", i);
            }
        },
        |push, i| {
            if i % 20 == 0 {
                push("rare", i);
            }
            if i % 3 == 0 {
                push("snap", i);
            }
            push("time", i);
        },
        // Complete tensors: none may be missing or come twice.
        |push, i| {
            if i % 8 == 5 {
                push("whole", i);
            }
            push("time", i);
        },
    ];
    let dir = directory_in_memory();
    let path = dir.path().join("a.safetensors");
    for (number, pass) in passes.into_iter().enumerate() {
        for killed_at in 0..60 {
            let every = (killed_at + number) as u64 % 5 + 1;
            let mut left = killed_at;
            let mut firsts = Vec::new();
            for _ in 0..2 {
                let options = SaveOptions::new().durable(false);
                let writer = GrowingWriter::resume(&path, &options).unwrap().sync_every(every);
                let names = ["time", "heat", "flow", "snap", "mean", "rare"];
                let tensors = names.map(|name| writer.grow(name, Dtype::U8, 0, &[]).unwrap());
                let first = tensors[0].steps() as u8;
                firsts.push(first);
                'run: for i in first..40 {
                    let mut is_killed = false;
                    pass(
                        &mut |name, i| {
                            is_killed |= left == 0;
                            if is_killed {
                                return;
                            }
                            left -= 1;
                            let step = TensorView::from_slice(&[], slice::from_ref(&i)).unwrap();
                            match names.iter().position(|&known| known == name) {
                                Some(at) => tensors[at].append(&step).unwrap(),
                                None => writer.add(&format!("whole {i}"), &step).unwrap(),
                            }
                        },
                        i,
                    );
                    if is_killed {
                        break 'run;
                    }
                }
                if left > 0 {
                    writer.finish().unwrap();
                }
                left = usize::MAX;
            }
            let mut expected = BTreeMap::<_, Vec<u8>>::new();
            for i in 0..40 {
                pass(
                    &mut |name, i| match name {
                        "whole" => _ = expected.insert(format!("whole {i}"), vec![i]),
                        name => expected.entry(name.to_owned()).or_default().push(i),
                    },
                    i,
                );
            }
            let file = SafeTensors::parse(fs::read(&path).unwrap()).unwrap();
            let found = file.views().filter(|(_, view)| !view.data().is_empty());
            let found = found.map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
            assert_eq!(expected, found, "{number}: {every}, {killed_at}, {firsts:?}");
            fs::remove_file(&path).unwrap();
        }
    }
}
