//! The statistics of a tensor, for `safetensors browse`.

use super::gather::gather;
use super::{Percentiles, Summary, shown};
use crate::input::Tensor;
use crate::terminal::progress::Progress;
use crate::terminal::text;

const PERCENTILES: [(f64, &str); 5] =
    [(1.0, "p1"), (25.0, "p25"), (50.0, "p50"), (75.0, "p75"), (99.0, "p99")];

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) lines: Vec<(&'static str, String)>,
    pub(crate) counts: Vec<u64>,
    /// Where the first bin begins and the last one ends.
    pub(crate) range: [f64; 2],
}

/// Returns the error `Cancelled` if `progress` is cancelled.
pub(crate) fn of_tensor(
    tensor: &Tensor<'_>,
    bins: u16,
    progress: &Progress,
) -> anyhow::Result<Facts> {
    let asked = PERCENTILES.map(|(percent, _)| percent);
    let mut summary = Summary::empty(&asked);
    let new = |found| Summary::new(&found, &asked, bins);
    gather(&[*tensor], progress, new, |_, found| {
        summary = found?;
        Ok(())
    })?;
    Ok(facts(&summary))
}

fn facts(summary: &Summary<'_>) -> Facts {
    let Summary { moments, percentiles: Percentiles { found, .. }, histogram } = summary;
    let mut lines = vec![("min", shown(moments.min))];
    let percentiles = PERCENTILES.iter().enumerate();
    lines.extend(percentiles.map(|(i, (_, name))| (*name, shown(found.get(i).copied()))));
    lines.extend([
        ("max", shown(moments.max)),
        ("mean", shown(moments.mean)),
        ("std", shown(moments.std)),
        ("zeros", text::count(moments.zeros)),
        ("NaN", text::count(moments.nan)),
        ("infinite", text::count(moments.infinite)),
    ]);
    let Some(histogram) = histogram else {
        return Facts { lines, counts: Vec::new(), range: [0.0; 2] };
    };
    let (below, above) = (histogram.below, histogram.above);
    if below + above > 0 {
        let outliers = format!("{} below, {} above", text::count(below), text::count(above));
        lines.push(("outliers", outliers));
    }
    Facts { lines, counts: histogram.counts.clone(), range: [histogram.min, histogram.max] }
}
