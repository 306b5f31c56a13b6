//! A histogram of several rows.

/// Returns the counts as bars of `height` rows, in at most `width` columns. A bin with few values
/// still shows a bar. There are no rows if there are no values.
pub(super) fn rows(counts: &[u64], width: usize, height: usize) -> Vec<String> {
    const STEPS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    // Neighbours share a column where there is no room for all.
    let share = counts.len().div_ceil(width.max(1)).max(1);
    let sum = |bins: &[u64]| bins.iter().map(|&count| u128::from(count)).sum::<u128>();
    let columns: Vec<u128> = counts.chunks(share).map(sum).collect();
    let most = columns.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return Vec::new();
    }
    let steps = (height * 8) as u128;
    let heights: Vec<usize> =
        columns.iter().map(|&count| (count * steps).div_ceil(most) as usize).collect();
    let row =
        |row: usize| heights.iter().map(|&all| STEPS[all.saturating_sub(row * 8).min(8)]).collect();
    (0..height).rev().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_rows() {
        assert_eq!(rows(&[16, 8, 0, 1], 4, 2), ["█   ", "██ ▁"]);
        assert_eq!(rows(&[1, 1, 1, 0], 2, 1), ["█▄"]);
        assert_eq!(rows(&[u64::MAX, u64::MAX], 1, 1), ["█"]);
        assert!(rows(&[0, 0], 4, 2).is_empty() && rows(&[], 0, 2).is_empty());
    }
}
