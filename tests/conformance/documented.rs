//! The matrix of dtypes in the README, once more: a dtype that a framework no longer holds as it is said to fails the suite.

use safetensors_bridge::Dtype::{
    BF16, BOOL, C64, F4, F6_E2M3, F6_E3M2, F8_E4M3, F8_E4M3FNUZ, F8_E5M2, F8_E5M2FNUZ, F8_E8M0, F16, F32, F64, I8, I16,
    I32, I64, U8, U16, U32, U64,
};
use safetensors_bridge::Support::{Exact, Widened};
use safetensors_bridge::{Dtype, Support};

/// Each dtype, in the order of [`Dtype::ALL`], with how ndarray, candle and burn hold it.
const MATRIX: [(Dtype, Support, Support, Support); 22] = [
    (BOOL, Exact, Widened(U8), Exact),
    (F4, Exact, Exact, Widened(F16)),
    (F6_E2M3, Exact, Exact, Widened(F16)),
    (F6_E3M2, Exact, Exact, Widened(F16)),
    (U8, Exact, Exact, Exact),
    (I8, Exact, Widened(I16), Exact),
    (F8_E5M2, Exact, Widened(F16), Widened(F16)),
    (F8_E4M3, Exact, Exact, Widened(F16)),
    (F8_E8M0, Exact, Exact, Widened(F32)),
    (F8_E4M3FNUZ, Exact, Widened(F16), Widened(F16)),
    (F8_E5M2FNUZ, Exact, Widened(F16), Widened(F16)),
    (I16, Exact, Exact, Exact),
    (U16, Exact, Widened(U32), Exact),
    (F16, Exact, Exact, Exact),
    (BF16, Exact, Exact, Exact),
    (I32, Exact, Exact, Exact),
    (U32, Exact, Exact, Exact),
    (F32, Exact, Exact, Exact),
    (C64, Exact, Widened(F32), Widened(F32)),
    (F64, Exact, Exact, Exact),
    (I64, Exact, Exact, Exact),
    (U64, Exact, Widened(I64), Exact),
];

/// The column of a framework.
pub(crate) fn documented(framework: &str) -> Vec<(Dtype, Support)> {
    let column = |(dtype, ndarray, candle, burn): (Dtype, Support, Support, Support)| match framework {
        "ndarray" => (dtype, ndarray),
        "candle" => (dtype, candle),
        "burn" => (dtype, burn),
        other => panic!("the README says nothing of {other}"),
    };
    MATRIX.into_iter().map(column).collect()
}
