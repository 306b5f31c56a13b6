//! Tables of a documentation with lines that are tests.

/// Checks that a table has a line for each test, in their order. A line goes by its first cell.
///
/// `source` is the Rust file with the table in its documentation, the first one below `heading`.
/// `elsewhere` are lines of it that have tests in other places.
///
/// # Panics
///
/// If the table has other lines.
#[track_caller]
pub fn assert_lines<'a>(
    source: &str,
    heading: &str,
    tested: impl IntoIterator<Item = &'a str>,
    elsewhere: &[&str],
) {
    let (_, section) = source.split_once(heading).unwrap();
    let section = section.split("//! # ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("//! | "));
    let mut lines: Vec<_> = lines.skip(1).map(|line| line.split(" | ").next().unwrap()).collect();
    let all = lines.len();
    lines.retain(|line| !elsewhere.contains(line));
    assert_eq!(lines, tested.into_iter().collect::<Vec<_>>(), "{heading}");
    assert_eq!(lines.len() + elsewhere.len(), all, "{heading}: {elsewhere:?}");
}
