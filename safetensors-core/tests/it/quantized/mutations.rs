//! Every fixture with one companion added, dropped, renamed or reshaped: its numbers are the same, or
//! it is refused.

use safetensors_testing::quantized::Quantized;

use crate::support::*;

type Tensors = BTreeMap<String, TensorBuf>;

/// Companions that a scheme has for some modules only: without them, the file is another valid one.
const OPTIONAL: &[&str] = &["pre_quant_scale", "weight_g_idx"];

/// The ends of companions that no scheme knows, of modules and of weights that are none of a module.
const UNKNOWN: &[&str] =
    &["scale_second", "offset", "wscales", "codebook", "absmax_2", "scale_3", "smooth_factor"];

/// Returns the content of a fixture: the weights by their names, or an error.
fn numbers(fixture: &Quantized, tensors: &Tensors) -> Result<BTreeMap<String, Vec<f32>>, String> {
    let options = SaveOptions::new().metadata(fixture.open().metadata().clone());
    let file = serialize(tensors.iter(), &options).unwrap();
    let beside = fs::read_dir(&fixture.directory).unwrap().map(|entry| entry.unwrap().path());
    let beside = beside.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let beside = beside.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        (format!("m/{name}"), fs::read(&path).unwrap())
    });
    let files = beside.chain([("m/model.safetensors".to_owned(), file)]);
    let store = MemoryStore::from_iter(files);
    let checkpoint = Checkpoint::open_in(store, "m/model.safetensors", &Limits::default());
    let checkpoint = checkpoint.unwrap().dequantized().map_err(|error| error.to_string())?;
    let weights = fixture.open().quantized_weights().unwrap();
    let read = weights.into_iter().map(|weight| {
        let name = weight.name;
        // A weight that is not recognised is no weight in F32.
        let tensor =
            checkpoint.tensor(&name).map_err(|error| format!("not recognised: {error}"))?;
        let read = tensor.read().map_err(|error| error.to_string())?;
        match read.dtype() {
            Dtype::F32 => Ok((name, read.into_vec().unwrap())),
            dtype => Err(format!("not recognised: {name} is {dtype}")),
        }
    });
    read.collect()
}

/// Returns the bytes in another shape.
fn reshaped(buf: &TensorBuf, shape: &[usize]) -> TensorBuf {
    TensorBuf::from_view(&TensorView::new(buf.dtype(), shape, buf.bytes()).unwrap()).unwrap()
}

/// Returns the possible changes of a companion.
fn changes(name: &str, buf: &TensorBuf) -> Vec<(String, Option<(String, TensorBuf)>)> {
    let shape = buf.shape();
    let mut shapes = vec![
        shape.iter().rev().copied().collect::<Vec<_>>(),
        vec![shape.iter().product()],
        [&[1], shape].concat(),
        [shape, &[1]].concat(),
    ];
    shapes.retain(|other| other != shape);
    let renamed = [format!("{name}_second"), format!("elsewhere.{name}")];
    let mut all = vec![("dropped".to_owned(), None)];
    all.extend(renamed.map(|new| (format!("renamed to {new}"), Some((new, buf.clone())))));
    all.extend(shapes.into_iter().map(|shape| {
        let changed = reshaped(buf, &shape);
        (format!("of shape {shape:?}"), Some((name.to_owned(), changed)))
    }));
    if let [first, rest @ ..] = shape
        && first % 2 == 0
        && buf.dtype().bits() >= 8
    {
        let half = [&[first / 2], rest].concat();
        let bytes = &buf.bytes()[..buf.bytes().len() / 2];
        let view = TensorView::new(buf.dtype(), &half, bytes).unwrap();
        all.push(("halved".into(), Some((name.into(), TensorBuf::from_view(&view).unwrap()))));
    }
    all
}

#[test]
fn a_module_with_a_changed_companion_is_right_or_refused() {
    let mut wrong = Vec::new();
    for fixture in Quantized::all() {
        let stored = fixture.open();
        let tensors = stored.tensors().map(|it| (it.name().to_owned(), it.read().unwrap()));
        let tensors: Tensors = tensors.collect();
        let right = numbers(&fixture, &tensors).unwrap();
        // Without settings and companions, nothing shows that these are codes.
        let is_right = |changed: &Tensors, may_be_unknown: bool| match numbers(&fixture, changed) {
            Ok(found) => found.iter().all(|(name, values)| is_same(values, &right[name])),
            Err(error) => may_be_unknown || !error.starts_with("not recognised"),
        };
        for weight in stored.quantized_weights().unwrap() {
            for companion in &weight.tensors[1..] {
                if OPTIONAL.iter().any(|end| companion.ends_with(end)) {
                    continue;
                }
                for (what, instead) in changes(companion, &tensors[companion]) {
                    let mut changed = tensors.clone();
                    changed.remove(companion);
                    let may_be_unknown = fs::read_dir(&fixture.directory).unwrap().count() == 2
                        && weight.tensors.len() == 2;
                    changed.extend(instead);
                    let is_wide = |it: &TensorBuf| it.dtype().bits() >= 16 && it.dtype().is_float();
                    let may_be_unknown = may_be_unknown || changed.values().all(is_wide);
                    if !is_right(&changed, may_be_unknown) {
                        wrong.push(format!("{}: {companion} {what}", fixture.name));
                    }
                }
            }
            let start = match weight.name.strip_suffix("weight") {
                Some(module) => ["weight_", ""].map(|inner| format!("{module}{inner}")).to_vec(),
                None => vec![format!("{}_", weight.name)],
            };
            let added = |start| UNKNOWN.iter().map(move |end| format!("{start}{end}"));
            for name in start.iter().flat_map(added) {
                for shape in [vec![], vec![1], vec![weight.shape[0], 1]] {
                    let len = shape.iter().product();
                    let buf = TensorBuf::from_vec(shape, vec![0.5_f32; len]).unwrap();
                    let mut changed = tensors.clone();
                    changed.insert(name.clone(), buf);
                    let found = numbers(&fixture, &changed);
                    // Some names belong to another scheme, which refuses them.
                    let is_named = |error: &String| {
                        error.contains(&name) || error.contains("cannot be read as numbers")
                    };
                    if !found.as_ref().is_err_and(is_named) {
                        wrong.push(format!("{}: {name} added: {found:.9?}", fixture.name));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} changes are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn is_same(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits())
}
