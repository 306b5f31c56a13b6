//! The layers show whether a square weight is stored transposed, not the setting `fan_in_fan_out`.

use safetensors_core::lora::Adapter;
use safetensors_testing::lora::Merge;

use super::{adapter, base};
use crate::support::*;

/// A layer: its name, the shape of its weight, and the length of its bias.
type Layer = (&'static str, [usize; 2], Option<usize>);

/// The weight of a square layer with numbers from 1 to 4, merged with two such matrices.
fn merged(layers: &[Layer], setting: bool, dora: bool) -> Result<Vec<f32>> {
    let tensors = layers.iter().flat_map(|(layer, shape, bias)| {
        let bias = bias.map(|outputs| (format!("{layer}.bias"), vec![outputs]));
        [(format!("{layer}.weight"), shape.to_vec())].into_iter().chain(bias)
    });
    let tensors: Vec<_> = tensors.collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (&**name, &**shape)).collect();
    let name = |end: &str| format!("base_model.model.{}.lora_{end}", layers[0].0);
    let names = ["A.weight", "B.weight", "magnitude_vector"].map(name);
    let parts = [(&*names[0], &[2, 2][..]), (&*names[1], &[2, 2]), (&*names[2], &[2])];
    let parts = &parts[..if dora { 3 } else { 2 }];
    let settings = format!(
        ", \"r\": 2, \"lora_alpha\": 2, \"use_dora\": {dora}, \"fan_in_fan_out\": {setting}"
    );
    let merged = base(&tensors).merged([adapter(Some(&settings), parts)?])?;
    merged.tensor(&format!("{}.weight", layers[0].0))?.read()?.into_vec()
}

#[test]
fn a_square_weight_is_transposed_as_the_layers_next_to_it() {
    // Linear, transposed, or refused: by the setting false and true.
    let (linear, transposed) = (Some(false), Some(true));
    let gpt2 = ("h.0.attn.c_attn", [2, 6], Some(6));
    for (layers, expected) in [
        (
            &[("model.layers.0.self_attn.q_proj", [2, 2], None), ("m.up_proj", [4, 2], None)][..],
            [linear, linear],
        ),
        (
            &[("layers.0.attn.q_proj", [2, 2], Some(2)), ("layers.0.attn.k_proj", [1, 2], Some(1))],
            [linear, linear],
        ),
        (
            &[
                ("encoder.layer.0.attention.query", [2, 2], Some(2)),
                ("encoder.layer.0.attention.key", [2, 2], Some(2)),
                ("encoder.layer.0.dense", [4, 2], Some(4)),
                gpt2,
            ],
            [None, None],
        ),
        (&[("h.0.attn.c_proj", [2, 2], Some(2)), gpt2], [transposed, transposed]),
        (
            &[("h.0.attn.c_proj", [2, 2], Some(2)), gpt2, ("h.0.head", [3, 2], Some(3))],
            [transposed, transposed],
        ),
        (&[("score", [2, 2], None), gpt2], [linear, linear]),
        // These layers are further away.
        (&[("h.0.mlp.c_fc", [2, 2], Some(2)), gpt2], [None, transposed]),
        (&[("q", [2, 2], Some(2)), ("norm", [2, 2], None)], [linear, None]),
        (&[("h.0.attn.q", [2, 2], Some(2)), gpt2, ("h.0.attn.k", [3, 2], Some(3))], [linear, None]),
    ] {
        for (setting, expected) in [false, true].into_iter().zip(expected) {
            let plain = merged(layers, setting, false);
            let dora = merged(layers, setting, true);
            let Some(is_transposed) = expected else {
                for error in [plain, dora].map(|merged| merged.unwrap_err().to_string()) {
                    assert!(error.contains("that shows whether it is transposed"), "{error}");
                    let remedy = format!("set fan_in_fan_out to {} in", !setting);
                    assert!(error.contains(layers[0].0) && error.contains(&remedy), "{error}");
                }
                continue;
            };
            let sum = if is_transposed { [8.0, 17.0, 13.0, 26.0] } else { [8.0, 12.0, 18.0, 26.0] };
            assert_eq!(plain.unwrap(), sum, "{layers:?}, {setting}");
            for (at, found) in dora.unwrap().into_iter().enumerate() {
                let output = if is_transposed { at % 2 } else { at / 2 };
                let [one, other] =
                    if is_transposed { [output, output + 2] } else { [2 * output, 2 * output + 1] };
                let expected = sum[at] * (output + 1) as f32 / sum[one].hypot(sum[other]);
                assert!((found - expected).abs() < 1e-6, "{layers:?}, {setting}: {found}");
            }
        }
    }
}

/// PEFT's results do not depend on the setting.
#[test]
fn another_setting_gives_the_reference_or_an_error() {
    let (mut equal, mut refused) = (0, 0);
    for fixture in Merge::all() {
        let adapters = fixture.paths().into_iter().filter(|path| path.is_dir()).map(|path| {
            let directory = tempdir().unwrap();
            copy_all(&path, directory.path());
            let config = directory.path().join("adapter_config.json");
            let text = fs::read_to_string(&config).unwrap();
            let [off, on] = ["\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true"];
            let other =
                if text.contains(on) { text.replace(on, off) } else { text.replace(off, on) };
            assert_eq!(other != text, text.contains("fan_in_fan_out"));
            fs::write(&config, other).unwrap();
            Adapter::open(directory.path()).unwrap()
        });
        match fixture.base().merged(adapters.collect::<Vec<_>>()) {
            Ok(merged) if merged.len() >= fixture.base().len() && fixture.paths()[0].is_dir() => {
                equal += 1;
                for tensor in fixture.expected().tensors() {
                    let found = merged.tensor(tensor.name()).unwrap().read().unwrap();
                    let found = found.convert(Dtype::F32, &Default::default()).unwrap();
                    fixture.compare(tensor.name(), found.as_slice().unwrap());
                }
            }
            Ok(_) => {}
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("shows whether it is transposed"), "{error}");
            }
        }
    }
    assert!(equal >= 14 && refused <= 2, "{equal} equal, {refused} refused");
}
