//! Which dtype a tensor gets in a framework: every way to load gives the same.

use safetensors_core::Widening;
use safetensors_core::convert::can_convert;
use safetensors_core::framework::{Framework, Support};
use safetensors_core::load::read_tensors;

use crate::support::*;

/// A framework that holds some dtypes exactly and some as wider ones. It holds C64 as pairs or not
/// at all.
struct Lacking<const PAIRS: bool>;

impl<const PAIRS: bool> Framework for Lacking<PAIRS> {
    const NAME: &'static str = "lacking";
    type Tensor = TensorBuf;
    type Device = ();

    fn support(dtype: Dtype) -> Support {
        match dtype {
            Dtype::BOOL => Support::Widened(Dtype::U8),
            Dtype::I8 => Support::Widened(Dtype::I16),
            Dtype::U16 => Support::Widened(Dtype::U32),
            Dtype::U64 => Support::Widened(Dtype::I64),
            Dtype::BF16 => Support::Widened(Dtype::F32),
            Dtype::C64 if PAIRS => Support::Widened(Dtype::F32),
            Dtype::C64 => Support::Unsupported,
            Dtype::F8_E8M0 => Support::Widened(Dtype::F32),
            _ if dtype.is_float() && dtype.bits() <= 8 => Support::Widened(Dtype::F16),
            _ => Support::Exact,
        }
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorBuf> {
        match Self::support(buf.dtype()) {
            Support::Exact => Ok(buf),
            _ => Err(Error::unsupported_dtype::<Self>(buf.dtype())),
        }
    }

    fn source(tensor: &TensorBuf) -> Result<impl TensorSource + '_> {
        Ok(tensor)
    }
}

const SHAPE: [usize; 2] = [2, 4];

/// A file with a tensor of zeros and ones of each dtype, named after it.
fn file() -> SafeTensors<Vec<u8>> {
    let bytes = |dtype: Dtype| match dtype {
        Dtype::C64 => [0.0_f32, 1.0].map(f32::to_le_bytes).concat().repeat(8),
        _ if can_convert(Dtype::U8, dtype) => {
            let bits = [0, 1, 1, 0, 1, 1, 1, 0];
            file_bytes(&super::convert(Dtype::U8, dtype, Default::default(), &bits).unwrap())
        }
        // Each scale is 2⁰.
        Dtype::F8_E8M0 => vec![127; 8],
        _ => vec![0; dtype.bits() as usize],
    };
    let all: Vec<_> = Dtype::ALL.iter().map(|&dtype| (dtype, bytes(dtype))).collect();
    let views = all
        .iter()
        .map(|(dtype, bytes)| (dtype.name(), TensorView::new(*dtype, &SHAPE, bytes).unwrap()));
    let file = serialize(views, &SaveOptions::new()).unwrap();
    SafeTensors::from_source(file).unwrap()
}

fn asked() -> Vec<LoadOptions> {
    let dtypes = [Dtype::F32, Dtype::F8_E5M2, Dtype::I64, Dtype::U16, Dtype::F4, Dtype::C64];
    let mut all = vec![LoadOptions::new()];
    for dtype in dtypes {
        all.push(LoadOptions::new().floats_as(dtype));
        all.push(LoadOptions::new().all_as(dtype));
        all.push(LoadOptions::new().floats_as(Dtype::F64).all_as(dtype));
    }
    all
}

type Tensor<'a> = LazyTensor<'a, Vec<u8>>;

/// Calls `check` with each tensor and all options, for each framework and for none.
fn for_all(check: impl Fn(&Tensor<'_>, &LoadOptions, Option<fn(Dtype) -> Support>)) {
    let file = file();
    for options in asked() {
        for widening in [Widening::Lossless, Widening::Refuse] {
            let options = options.clone().widening(widening).threads(1);
            for &dtype in Dtype::ALL {
                let tensor = file.tensor(dtype.name()).unwrap();
                check(&tensor, &options, None);
                let lacking = options.clone().for_framework::<Lacking<false>>();
                check(&tensor, &lacking, Some(Lacking::<false>::support));
                let pairs = options.clone().for_framework::<Lacking<true>>();
                check(&tensor, &pairs, Some(Lacking::<true>::support));
            }
        }
    }
}

fn without_place(error: &Error) -> String {
    format!("{:?}", error.kind())
}

#[test]
fn the_dtype_that_is_read_is_the_one_that_was_announced() {
    for_all(|tensor, options, support| {
        let decided = options.dtype_plan(tensor.dtype());
        let read = tensor.read_with(options);
        let what = || format!("{} {options:?}: {decided:?}", tensor.name());
        match (&decided, &read) {
            (Ok(decided), Ok(buf)) => {
                assert_eq!(buf.dtype(), decided.dtype(), "{}", what());
                assert_eq!(buf.shape(), decided.shape(&SHAPE), "{}", what());
                let held = support.map_or(Support::Exact, |support| support(buf.dtype()));
                assert_eq!(held, Support::Exact, "{}", what());
            }
            (Err(decided), Err(read)) => {
                assert_eq!(without_place(decided), without_place(read), "{}", what());
                assert_eq!(read.tensor(), Some(tensor.name()));
            }
            (Ok(_), Err(error)) => {
                let asked = options.dtype_of(tensor.dtype());
                let from = match error.kind() {
                    ErrorKind::NoConversion { from, to } if *to == asked => *from,
                    _ => panic!("{} {error}", what()),
                };
                assert!(!can_convert(from, asked), "{}", what());
                assert_eq!(error.tensor(), Some(tensor.name()));
            }
            (Err(error), Ok(_)) => panic!("{} {error}", what()),
        }
        let together = read_tensors(&[*tensor], options).map(|mut bufs| bufs.remove(0));
        match (read, together) {
            (Ok(one), Ok(other)) => assert_eq!(one.bytes(), other.bytes(), "{}", what()),
            (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
            _ => panic!("{}", what()),
        }
    });
}

#[test]
fn a_buffer_in_memory_gets_the_same_dtype_as_a_tensor_of_a_file() {
    let file = file();
    for widening in [Widening::Lossless, Widening::Refuse] {
        let options = LoadOptions::new().widening(widening).for_framework::<Lacking<true>>();
        for &dtype in Dtype::ALL {
            let tensor = file.tensor(dtype.name()).unwrap();
            let made = Lacking::<true>::from_buf(tensor.read().unwrap(), &(), widening);
            match (tensor.read_with(&options), made) {
                (Ok(one), Ok(other)) => {
                    assert_eq!((one.dtype(), one.shape()), (other.dtype(), other.shape()));
                    assert_eq!(one.bytes(), other.bytes(), "{dtype}");
                }
                (Err(one), Err(other)) => assert_eq!(without_place(&one), without_place(&other)),
                _ => panic!("{dtype} {widening:?}"),
            }
        }
    }
}

#[test]
fn a_conversion_comes_before_widening_and_a_dtype_for_all_after_it() {
    let exact = |options: LoadOptions| {
        let options = options.widening(Widening::Refuse).for_framework::<Lacking<true>>();
        move |dtype: Dtype| options.dtype_plan(dtype).map(|loaded| loaded.dtype())
    };
    // The options ask for this dtype, so it does not count as widening.
    assert_eq!(exact(LoadOptions::new().floats_as(Dtype::F32))(Dtype::BF16).unwrap(), Dtype::F32);
    // The framework lacks the dtype of the file, so the dtype for all does not matter.
    refused!(
        exact(LoadOptions::new().all_as(Dtype::F32))(Dtype::BF16),
        ErrorKind::WouldWiden { dtype: Dtype::BF16, to: Dtype::F32, .. }
    );
    // The framework lacks the dtype that the options ask for.
    refused!(
        exact(LoadOptions::new().floats_as(Dtype::BF16))(Dtype::F32),
        ErrorKind::WouldWiden { dtype: Dtype::BF16, .. }
    );

    let values = [1.0_f32 / 3.0, -200.0 / 3.0, 1.5, 4.0];
    let bytes = values.map(f32::to_le_bytes).concat();
    let views = [
        ("floats", TensorView::new(Dtype::F32, &[4], &bytes).unwrap()),
        ("pairs", TensorView::new(Dtype::C64, &[2], &bytes).unwrap()),
    ];
    let file = serialize(views, &SaveOptions::new()).unwrap();
    let file = SafeTensors::from_source(file).unwrap();
    let read = |name: &str, options: LoadOptions| {
        file.tensor(name).unwrap().read_with(&options.for_framework::<Lacking<true>>()).unwrap()
    };
    // The values are rounded to the dtype that the options ask for, then widened to one that the
    // framework has.
    let rounded: Vec<half::f16> =
        super::converted::<f32, float8::F8E5M2>(values.into()).iter().map(|x| x.to_f16()).collect();
    let floats = read("floats", LoadOptions::new().floats_as(Dtype::F8_E5M2));
    assert_eq!(floats.into_vec::<half::f16>().unwrap(), rounded);
    for options in [
        LoadOptions::new().all_as(Dtype::F8_E5M2),
        LoadOptions::new().floats_as(Dtype::F64).all_as(Dtype::F8_E5M2),
    ] {
        let pairs = read("pairs", options);
        assert_eq!(pairs.shape(), [2, 2]);
        assert_eq!(pairs.into_vec::<half::f16>().unwrap(), rounded);
    }
}
