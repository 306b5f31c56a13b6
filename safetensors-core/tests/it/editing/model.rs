//! Random edits of random files, compared with a model that keeps the tensors in a map.

use proptest::prelude::*;
use safetensors_core::edit::Edited;
use safetensors_core::save::Order;

use super::parse;
use crate::support::*;

#[derive(Clone, Debug)]
struct Model {
    order: Vec<String>,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    metadata: Metadata,
}

const DTYPES: [Dtype; 4] = [Dtype::F64, Dtype::F32, Dtype::I16, Dtype::U8];

fn some_tensors() -> impl Strategy<Value = Vec<(Dtype, Vec<usize>, Vec<u8>)>> {
    let one = (0..DTYPES.len(), prop::collection::vec(0..4_usize, 0..3), any::<u8>());
    let one = one.prop_map(|(dtype, shape, seed)| {
        let len = safetensors_core::shape::byte_len(DTYPES[dtype], &shape).unwrap();
        (DTYPES[dtype], shape, (0..len).map(|i| (i as u8).wrapping_add(seed)).collect())
    });
    prop::collection::vec(one, 0..7)
}

fn some_metadata() -> impl Strategy<Value = Metadata> {
    prop::collection::btree_map("[a-c]", "[x\"é]{0,40}", 0..3)
}

proptest! {
    #[test]
    fn any_edit_equals_the_model(
        old in some_tensors(),
        old_metadata in some_metadata(),
        added in some_tensors(),
        fates in prop::collection::vec(0..4_usize, 7),
        (set, unset, clear) in (some_metadata(), prop::collection::vec("[a-c]", 0..2), prop::bool::weighted(0.1)),
        (align, given, in_place) in (3..13_u32, any::<bool>(), prop::bool::weighted(0.8)),
    ) {
        let (directory, path) = place("model.safetensors");
        let order = if given { Order::Given } else { Order::Alignment };
        let options = SaveOptions::new().order(order).align(1 << align).durable(false).metadata(old_metadata.clone());
        let views = old.iter().enumerate().map(|(i, (dtype, shape, bytes))| {
            (format!("t{i}"), TensorView::new(*dtype, shape, bytes).unwrap())
        });
        save(&path, views, &options).unwrap();
        let before = parse(&path);

        // The change of each tensor: it stays (two of four cases), is removed, or gets the name of
        // the next one that is renamed.
        let name_at = |i: usize| format!("t{i}");
        let removed: Vec<String> = (0..old.len()).filter(|i| fates[*i] == 2).map(name_at).collect();
        let rotated: Vec<usize> = (0..old.len()).filter(|i| fates[*i] == 3).collect();
        let next = |at: usize| name_at(rotated[(at + 1) % rotated.len()]);
        let renamed: BTreeMap<String, String> = rotated.iter().enumerate().map(|(at, i)| (name_at(*i), next(at))).collect();

        let mut model = Model { order: Vec::new(), tensors: BTreeMap::new(), metadata: old_metadata };
        for tensor in before.tensors().filter(|tensor| !removed.contains(&tensor.name().to_owned())) {
            let name = renamed.get(tensor.name()).cloned().unwrap_or_else(|| tensor.name().to_owned());
            let data = before.view(tensor.name()).unwrap().data().to_vec();
            model.tensors.insert(name.clone(), (tensor.dtype(), tensor.shape().to_vec(), data));
            model.order.push(name);
        }
        let added: Vec<_> = added.iter().enumerate().map(|(i, tensor)| {
            // A name that has become free can be used again.
            (removed.get(i).cloned().unwrap_or_else(|| format!("new {i}")), tensor)
        }).collect();
        for (name, tensor) in &added {
            model.tensors.insert(name.clone(), (*tensor).clone());
            model.order.push(name.clone());
        }
        if clear {
            model.metadata.clear();
        }
        model.metadata.extend(set.clone());
        unset.iter().for_each(|key| { model.metadata.remove(key); });

        let mut edit = Edit::open(&path).unwrap().in_place(in_place).durable(false);
        if clear {
            edit = edit.clear_metadata();
        }
        let new = added.iter().map(|(name, (dtype, shape, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape, bytes).unwrap())
        });
        let edit = edit.set_metadata(set).remove_metadata(unset).rename(renamed).remove(removed).append(new);
        let dry = edit.dry_run().unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), before.source().clone());
        let done = edit.apply().unwrap();
        prop_assert_eq!(done, dry);

        let after = parse(&path);
        prop_assert_eq!(after.metadata(), &model.metadata);
        prop_assert_eq!(after.header().len(), model.order.len());
        for (name, (dtype, shape, data)) in &model.tensors {
            let view = after.view(name).unwrap();
            prop_assert_eq!((view.dtype(), view.shape(), view.data()), (*dtype, &shape[..], &data[..]), "{}", name);
        }
        let full = |name: &&str| after.header().get(name).unwrap().byte_len() > 0;
        let order: Vec<&str> = after.tensors().map(|tensor| tensor.name()).filter(full).collect();
        prop_assert_eq!(order, model.order.iter().map(String::as_str).filter(full).collect::<Vec<_>>());
        prop_assert_eq!(after.header().data_start() % (1 << align), 0);
        match done {
            Edited::Unchanged => prop_assert_eq!(after.source(), before.source()),
            Edited::InPlace => {
                prop_assert!(in_place);
                prop_assert_eq!(after.header().data_start(), before.header().data_start());
                let data = before.header().data_start() as usize..;
                prop_assert_eq!(&after.source()[data.clone()], &before.source()[data]);
            }
            Edited::Rewritten => {}
        }
        prop_assert_eq!(names_in(directory.path()), ["model.safetensors"]);
        // A repeated edit has nothing to do.
        prop_assert_eq!(Edit::open(&path).unwrap().set_metadata(model.metadata).apply().unwrap(), Edited::Unchanged);
    }
}
