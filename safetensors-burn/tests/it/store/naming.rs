//! Rules for names, and lists that get other numbers.

use super::*;

fn names_of(store: CheckpointStore) -> Vec<String> {
    let mut store = store;
    store.keys().unwrap()
}

#[test]
fn rules_are_made_in_advance_and_replace_each_other() {
    let mut store = CheckpointStore::from_bytes(None).with_regex("^norm");
    Model::new(2).save_into(&mut store).unwrap();
    let bytes = store.get_bytes().unwrap();
    let store = || CheckpointStore::from_bytes(Some(bytes.clone()));
    let compiled = |rules: &[(&str, &str)]| -> Vec<_> {
        let rules = rules.iter();
        rules.map(|(pattern, to)| (regex::Regex::new(pattern).unwrap(), (*to).to_owned())).collect()
    };
    let rules = compiled(&[("^norm", "ln"), (r"\.beta$", ".bias")]);
    assert_eq!(names_of(store().remap(rules.clone())), ["ln.bias", "ln.gamma"]);
    // A later rule is added, another set of rules replaces them.
    let store_of_both = store().remap(rules).with_key_remapping("gamma", "weight");
    assert_eq!(names_of(store_of_both), ["ln.bias", "ln.weight"]);
    let other = compiled(&[("norm", "n"), ("n.", "m.")]);
    let replaced = store().with_key_remapping("^norm", "ln").remap(other);
    assert_eq!(names_of(replaced), ["m.beta", "m.gamma"]);
    assert_eq!(names_of(store().remap([])), ["norm.beta", "norm.gamma"]);
}

#[derive(Module, Debug)]
struct Gaps {
    flows: Vec<Option<Param<Tensor<1>>>>,
    fc: Vec<Option<Param<Tensor<1>>>>,
}

impl Gaps {
    fn new() -> Self {
        let param = |value: f32| Some(Param::from_data([value], &Device::default()));
        Self {
            flows: vec![param(0.0), None, param(2.0), None, param(4.0)],
            fc: vec![param(5.0), None, param(7.0)],
        }
    }
}

#[test]
fn lists_with_gaps_are_renumbered_on_loading() {
    let mut store = CheckpointStore::from_bytes(None).map_indices_contiguous(true);
    Gaps::new().save_into(&mut store).unwrap();
    // Saving changes no number.
    let bytes = store.get_bytes().unwrap();
    let saved = names_of(CheckpointStore::from_bytes(Some(bytes)));
    assert_eq!(saved, ["fc.0", "fc.2", "flows.0", "flows.2", "flows.4"]);

    // Another option after the first use takes effect.
    assert_eq!(store.keys().unwrap(), ["fc.0", "fc.1", "flows.0", "flows.1", "flows.2"]);
    let mut store = store.map_indices_contiguous_except("^flows$");
    assert_eq!(store.keys().unwrap(), ["fc.0", "fc.1", "flows.0", "flows.2", "flows.4"]);
    let mut store = store.map_indices_contiguous(false);
    assert_eq!(store.keys().unwrap(), saved);

    #[derive(Module, Debug)]
    struct Dense {
        layers: Vec<Param<Tensor<1>>>,
    }
    let zeros = || Initializer::Zeros.init([1], &Device::default());
    let mut dense = Dense { layers: (0..3).map(|_| zeros()).collect() };
    let mut store = store.with_key_remapping("^flows", "layers").map_indices_contiguous(true);
    let result = dense.load_from(&mut store).unwrap();
    assert_eq!(result.unused, ["fc.0", "fc.1"]);
    let values: Vec<_> = dense.layers.iter().map(|layer| layer.to_data()).collect();
    assert_eq!(values, [0.0_f32, 2.0, 4.0].map(|value| TensorData::from([value])));
}

#[test]
fn names_of_tied_parameters_are_renumbered_too() {
    let mut model = Gaps::new();
    model.fc[2] = model.flows[4].clone();
    let mut store = CheckpointStore::from_bytes(None).map_indices_contiguous(true);
    model.save_into(&mut store).unwrap();
    assert_eq!(store.keys().unwrap(), ["fc.0", "fc.1", "flows.0", "flows.1", "flows.2"]);
    let tied = [data_of(store.get_tensor("fc.1").unwrap().unwrap())];
    assert_eq!(tied, [TensorData::from([4.0_f32])]);
}
