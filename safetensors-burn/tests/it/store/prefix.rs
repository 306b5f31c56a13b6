//! A part of a model in a file of all of it, and a file of a part.

use super::*;

#[test]
fn a_module_is_loaded_from_its_part_of_a_file() {
    let model = Model::new(2);
    // A tensor of the whole model has the name of a tensor of the part.
    let mut whole = CheckpointStore::from_bytes(None).with_key_remapping("^mask$", "weight");
    model.save_into(&mut whole).unwrap();
    let bytes = whole.get_bytes().unwrap();
    let store = |prefix: &str| CheckpointStore::from_bytes(Some(bytes.clone())).prefix(prefix);

    let mut encoder = LinearConfig::new(3, 4).init(&Device::default());
    let result = encoder.load_from(&mut store("encoder").param_ids(true)).unwrap();
    assert_eq!(result.applied, ["weight", "bias"]);
    assert!(result.unused.is_empty() && result.missing.is_empty());
    assert_eq!(state(&encoder), state(&model.encoder));
    assert_eq!(encoder.weight.id, model.encoder.weight.id);

    // Rules come after it.
    let mut renamed = store("layers").with_key_remapping("^1\\.", "second.");
    assert_eq!(renamed.keys().unwrap(), ["0.weight", "second.weight"]);
    assert_eq!(store("").keys().unwrap().len(), PATHS.len());
    assert!(store("enc").keys().unwrap().is_empty(), "it is not a part of a name");
    // Also if parameters may be missing.
    for partial in [false, true] {
        let mut store = store("decodr").allow_partial(partial);
        let error = encoder.load_from(&mut store).unwrap_err();
        let text = "bytes in memory: none of the 12 tensors is selected; no name in the file begins \
                    with \"decodr.\"";
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_module_is_saved_as_a_part() {
    let model = Model::new(2);
    let mut store = CheckpointStore::from_bytes(None)
        .with_key_remapping("^weight$", "kernel")
        .prefix("model.encoder.");
    model.encoder.save_into(&mut store).unwrap();
    let names = |store: &CheckpointStore| {
        let file = Checkpoint::from_source(store.get_bytes().unwrap(), "memory").unwrap();
        file.tensors().map(|tensor| tensor.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&store), ["model.encoder.bias", "model.encoder.kernel"]);

    // It goes back into the whole model, by a rule or by the part.
    let bytes = store.get_bytes().unwrap();
    let mut others = [Model::new(7), Model::new(8)];
    let rule = CheckpointStore::from_bytes(Some(bytes.clone()))
        .prefix("model")
        .with_key_remapping("kernel$", "weight")
        .allow_partial(true);
    others[0].load_from(&mut { rule }).unwrap();
    let part = CheckpointStore::from_bytes(Some(bytes)).prefix("model.encoder");
    others[1].encoder.load_from(&mut part.with_key_remapping("^kernel$", "weight")).unwrap();
    for other in others {
        assert_eq!(state(&other.encoder), state(&model.encoder));
    }
}

#[derive(Module, Debug)]
struct Tied {
    inner: Pair,
    outer: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Pair {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

/// The tensor is saved under a name outside of the part.
#[test]
fn tied_parameters_load_under_each_name() {
    let param = |value: f32| Param::from_data([value, value], &Device::default());
    let first = param(1.0);
    let (second, outer) = (first.clone(), first.clone());
    let tied = Tied { inner: Pair { first, second }, outer };
    let options = SaveOptions::new().tied(safetensors_core::tied::Tied::new().prefer(["outer"]));
    let mut store = CheckpointStore::from_bytes(None).save_options(options);
    tied.save_into(&mut store).unwrap();
    let mut store = store.prefix("inner");
    assert_eq!(store.keys().unwrap(), ["first", "second"]);
    let mut other = Pair { first: param(2.0), second: param(3.0) };
    let result = other.load_from(&mut store).unwrap();
    assert!(result.unused.is_empty());
    assert_eq!(state(&other), state(&tied.inner));
}
