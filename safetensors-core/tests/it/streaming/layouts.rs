//! The file is the same for every order of writing, and is laid out as requested.

use std::thread;

use proptest::prelude::*;
use safetensors_core::save::{Order, StreamWriter, write_to};

use crate::support::*;

const DTYPES: [Dtype; 6] = [Dtype::F64, Dtype::F32, Dtype::BF16, Dtype::U8, Dtype::C64, Dtype::I16];

/// Name, dtype, shape and bytes.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn some_tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let one = (0..DTYPES.len(), prop::collection::vec(0..5_usize, 0..4), any::<u8>());
    prop::collection::vec(one, 0..8).prop_map(|tensors| {
        let tensor = |(i, (dtype, shape, seed)): (usize, (usize, Vec<usize>, u8))| {
            let dtype = DTYPES[dtype];
            let len = safetensors_core::shape::byte_len(dtype, &shape).unwrap();
            let bytes = (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
            // The names do not sort in the order in which they are given.
            (format!("{}.{i}", (i * 7) % 5), dtype, shape, bytes)
        };
        tensors.into_iter().enumerate().map(tensor).collect()
    })
}

fn views(tensors: &[Tensor]) -> impl Iterator<Item = (&str, TensorView<'_>)> {
    tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape, bytes).unwrap())
    })
}

fn declared(tensors: &[Tensor]) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
    tensors.iter().map(|(name, dtype, shape, _)| (name.as_str(), *dtype, shape.as_slice()))
}

fn some_options() -> impl Strategy<Value = SaveOptions> {
    let order = prop_oneof![Just(Order::Alignment), Just(Order::Given)];
    (order, 3..13_u32, prop::collection::btree_map("[a-z]{0,3}", "\\PC{0,5}", 0..3)).prop_map(
        |(order, align, metadata)| {
            SaveOptions::new().order(order).align(1 << align).metadata(metadata).durable(false)
        },
    )
}

proptest! {
    /// Whatever the pieces, their order and the threads, the file is the one that `serialize`
    /// makes.
    #[test]
    fn any_pieces_in_any_order_from_any_thread_make_the_same_file(
        tensors in some_tensors(),
        options in some_options(),
        cuts in prop::collection::vec(any::<u16>(), 0..30),
        seed in any::<u64>(),
    ) {
        let mut pieces = Vec::new();
        for (i, (_, _, _, bytes)) in tensors.iter().enumerate() {
            let mut at: Vec<usize> = cuts.iter().map(|cut| *cut as usize % (bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            pieces.extend(at.windows(2).map(|pair| (i, pair[0]..pair[1])));
        }
        pieces.sort_by_key(|(i, range)| (*i as u64 * 7919 + range.start as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));

        let (_directory, path) = place("model.safetensors");
        let writer = StreamWriter::create(&path, declared(&tensors), &options).unwrap();
        thread::scope(|scope| {
            for share in pieces.chunks(pieces.len() / 3 + 1) {
                let (writer, tensors) = (&writer, &tensors);
                scope.spawn(move || {
                    for (i, range) in share {
                        let (name, _, _, bytes) = &tensors[*i];
                        writer.tensor(name).unwrap().write_bytes_at(range.start as u64, &bytes[range.clone()]).unwrap();
                    }
                });
            }
        });
        prop_assert!(!path.exists());
        writer.finish().unwrap();
        let expected = serialize(views(&tensors), &options).unwrap();
        prop_assert_eq!(&fs::read(&path).unwrap(), &expected);

        let mut piped = Vec::new();
        write_to(&mut piped, views(&tensors), &options).unwrap();
        prop_assert_eq!(piped, expected);
    }

    /// With any order and alignment, the file can be read back, the data is aligned as requested,
    /// and the tensors are in the requested order.
    #[test]
    fn layouts(
        tensors in some_tensors(),
        options in some_options(),
        given in any::<bool>(),
        align in 3..13_u32
    ) {
        let options = options.order(if given { Order::Given } else { Order::Alignment }).align(1 << align);
        let archive = SafeTensors::parse(serialize(views(&tensors), &options).unwrap()).unwrap();
        prop_assert_eq!(archive.header().data_start() % (1 << align), 0);
        for (name, view) in views(&tensors) {
            prop_assert_eq!(archive.view(name).unwrap(), view);
        }
        // Tensors without bytes do not show the order, because several of them have one offset.
        let in_file = |archive: &SafeTensors<Vec<u8>>| -> Vec<String> {
            let full = archive.tensors().filter(|tensor| tensor.byte_len() > 0);
            full.map(|tensor| tensor.name().to_owned()).collect()
        };
        let mut expected: Vec<&Tensor> = tensors.iter().filter(|(_, _, _, bytes)| !bytes.is_empty()).collect();
        if !given {
            expected.sort_by_key(|(name, dtype, ..)| (std::cmp::Reverse(*dtype), name.clone()));
            for tensor in archive.tensors() {
                let start = tensor.file_offset();
                prop_assert_eq!(start % tensor.dtype().alignment() as u64, 0, "{}", tensor.name());
            }
        }
        prop_assert_eq!(in_file(&archive), expected.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>());
    }
}
