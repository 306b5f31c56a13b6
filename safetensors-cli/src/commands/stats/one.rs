//! The statistics of one tensor, for `safetensors browse`.

use super::{Stats, Tensor, look};
use crate::progress::Progress;
use crate::text;

/// The statistics of one tensor, for people.
#[derive(Debug)]
pub(crate) struct Facts {
    /// What was computed, each with its name.
    pub(crate) lines: Vec<(&'static str, String)>,
    /// The counts of the histogram's bins.
    pub(crate) counts: Vec<u64>,
    /// The smallest and the largest value of the histogram.
    pub(crate) range: [f64; 2],
}

/// The number of bytes that [`of_tensor`] reads of a tensor of `bytes` bytes.
pub(crate) fn bytes_read(bytes: u64, bins: usize) -> u64 {
    bytes.saturating_mul(if bins > 0 { 2 } else { 1 })
}

/// The statistics of one tensor. If `progress` is cancelled, that is the error `Cancelled`.
pub(crate) fn of_tensor(
    tensor: &Tensor<'_>,
    bins: usize,
    progress: &Progress,
) -> anyhow::Result<Facts> {
    let mut stats = [Stats::new(tensor)];
    look(&[*tensor], &mut stats, bins, progress)?;
    let [Stats { moments, histogram, error, .. }] = stats;
    if let Some(error) = error {
        anyhow::bail!(error);
    }
    let number = |value: Option<f64>| value.map_or_else(|| "–".into(), text::number);
    let lines = vec![
        ("min", number(moments.min)),
        ("mean", number(moments.mean)),
        ("max", number(moments.max)),
        ("std", number(moments.std)),
        ("zeros", text::count(moments.zeros)),
        ("NaN", text::count(moments.nan)),
        ("infinite", text::count(moments.infinite)),
    ];
    let counts = histogram.map(|histogram| histogram.counts().to_vec()).unwrap_or_default();
    let range = [moments.min, moments.max].map(Option::unwrap_or_default);
    Ok(Facts { lines, counts, range })
}
