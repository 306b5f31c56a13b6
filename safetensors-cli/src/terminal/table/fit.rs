//! [`fit`]: the widths of a table's columns on a terminal.

use super::{Column, Cut, GAP};

/// The width of the `…` that marks hidden columns.
pub(super) const MARK: usize = GAP + 1;

/// Names keep this width until columns are hidden.
const LEAST_NAME: usize = 20;

/// Cells are not shortened to less.
const LEAST: usize = 8;

/// Rows have at most `width`, and at most `most` columns. `None` hides a column. `natural` are the
/// widths of the cells.
///
/// Long cells are shortened first. A column is hidden only if the first column of names would have
/// less than a third of the row, or another one less than a quarter. Rows are longer only if the
/// columns that always stay do not fit.
pub(super) fn fit(
    columns: &[Column<'_>],
    natural: &[usize],
    width: usize,
    most: usize,
) -> Vec<Option<usize>> {
    let mut hidden = vec![false; columns.len()];
    loop {
        let mut widths = least(columns, natural, &hidden, width);
        let count = widths.iter().flatten().count();
        let mark = if count < columns.len() { MARK } else { 0 };
        let room = width.saturating_sub(GAP * count.saturating_sub(1) + mark);
        let needed = widths.iter().flatten().sum::<usize>();
        let rank = |&i: &usize| columns[i].rank.map_or(i, usize::from);
        let highest = (0..columns.len()).filter(|i| !hidden[*i] && rank(i) > 0).max_by_key(rank);
        if let Some(highest) = highest.filter(|_| needed > room || count > most) {
            hidden[highest] = true;
            continue;
        }
        grow(&mut widths, natural, room.saturating_sub(needed));
        squeeze(columns, &mut widths, needed.saturating_sub(room));
        return widths;
    }
}

/// Returns the widths under which columns are hidden instead.
fn least(
    columns: &[Column<'_>],
    natural: &[usize],
    hidden: &[bool],
    width: usize,
) -> Vec<Option<usize>> {
    let mut part = width / 3;
    let least = |((column, &natural), &is_hidden): ((&Column<'_>, &usize), &bool)| {
        if is_hidden || column.cut == Cut::Nothing {
            return (!is_hidden).then_some(natural);
        }
        let least = natural.min(part.max(LEAST_NAME));
        part = width / 4;
        Some(least)
    };
    columns.iter().zip(natural).zip(hidden).map(least).collect()
}

/// Gives spare width to the first columns that can use it.
fn grow(widths: &mut [Option<usize>], natural: &[usize], mut spare: usize) {
    for (width, natural) in widths.iter_mut().zip(natural) {
        let Some(width) = width else { continue };
        let more = spare.min(natural - *width);
        *width += more;
        spare -= more;
    }
}

/// Takes missing width from the last columns that can be shortened.
fn squeeze(columns: &[Column<'_>], widths: &mut [Option<usize>], mut missing: usize) {
    for (column, width) in columns.iter().zip(widths).rev() {
        let Some(width) = width.as_mut().filter(|_| column.cut != Cut::Nothing) else { continue };
        let less = missing.min(width.saturating_sub(LEAST));
        *width -= less;
        missing -= less;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<'_>; 4] = [
        Column::name("name").rank(0),
        Column::word("dtype").rank(2),
        Column::number("tensors").rank(3),
        Column::number("size").rank(1),
    ];

    fn widths(natural: [usize; 4], width: usize) -> [usize; 4] {
        let all = fit(&COLUMNS, &natural, width, 4);
        [all[0], all[1], all[2], all[3]].map(|width| width.unwrap_or(0))
    }

    #[test]
    fn names_are_shortened_first_and_then_columns_dropped_by_rank() {
        let natural = [50, 5, 7, 8];
        assert_eq!(widths(natural, 76), natural);
        assert_eq!(widths(natural, 75), [49, 5, 7, 8]);
        // A name has 20 at least. With all columns it would have less.
        assert_eq!(widths(natural, 46), [20, 5, 7, 8]);
        assert_eq!(widths(natural, 45), [25, 5, 0, 8]);
        assert_eq!(widths(natural, 39), [26, 0, 0, 8]);
        assert_eq!(widths(natural, 32), [29, 0, 0, 0]);
        assert_eq!(widths(natural, 20), [17, 0, 0, 0]);
        // On a wider terminal it has a third.
        assert_eq!(widths([100, 20, 30, 18], 110), [36, 20, 30, 18]);
        assert_eq!(widths([100, 20, 30, 18], 109), [64, 20, 0, 18]);
        // A short name leaves room for the others.
        assert_eq!(widths([10, 5, 7, 8], 36), [10, 5, 7, 8]);
        assert_eq!(widths([10, 5, 7, 8], 35), [10, 5, 0, 8]);
    }

    #[test]
    fn tables_keep_to_every_width() {
        for width in 11..100 {
            for natural in [[50, 5, 7, 8], [10_000, 5, 30, 8], [4, 5, 7, 4], [12, 5, 7, 10_000]] {
                let all = fit(&COLUMNS, &natural, width, 4);
                let count = all.iter().flatten().count();
                let mark = if count < 4 { MARK } else { 0 };
                let row = all.iter().flatten().sum::<usize>() + GAP * (count - 1) + mark;
                assert!(row <= width && all[0].is_some(), "{natural:?} {width}: {all:?}");
            }
        }
    }

    #[test]
    fn without_ranks_the_last_column_goes_first_and_the_first_stays() {
        let columns = COLUMNS.map(|column| Column { rank: None, ..column });
        let all = fit(&columns, &[50, 5, 7, 8], 45, 4);
        assert_eq!(all, [Some(26), Some(5), Some(7), None]);
        let all = fit(&columns, &[50, 5, 7, 8], 1, 4);
        assert_eq!(all, [Some(LEAST), None, None, None]);
    }

    #[test]
    fn fewer_columns_are_kept_than_fit() {
        assert_eq!(fit(&COLUMNS, &[10, 5, 7, 8], 80, 2), [Some(10), None, None, Some(8)]);
        assert_eq!(fit(&COLUMNS, &[100, 5, 7, 8], 80, 0), [Some(77), None, None, None]);
    }

    #[test]
    fn a_second_name_has_a_quarter_at_least() {
        let columns = [Column::name("key").rank(0), Column::text("value").rank(0)];
        assert_eq!(fit(&columns, &[100, 100], 80, 2), [Some(58), Some(20)]);
        assert_eq!(fit(&columns, &[6, 100], 80, 2), [Some(6), Some(72)]);
        assert_eq!(fit(&columns, &[100, 100], 20, 2), [Some(10), Some(8)]);
    }
}
