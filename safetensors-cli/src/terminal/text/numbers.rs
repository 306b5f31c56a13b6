//! Numbers, sizes and shapes, made easy to read.

/// `[768, 3072]`; `[]` is a scalar. Many dimensions are shown without their middle.
pub(crate) fn shape(dims: &[usize]) -> String {
    // Only hostile files have longer shapes, so no reader misses their full text.
    const MAX_DIMS: usize = 12;
    let join = |dims: &[usize]| dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if dims.len() <= MAX_DIMS {
        return format!("[{}]", join(dims));
    }
    let (start, end) = (&dims[..MAX_DIMS / 2], &dims[dims.len() - MAX_DIMS / 2..]);
    format!("[{}, …, {}] ({} dimensions)", join(start), join(end), count(dims.len() as u64))
}

/// `22,713,728`.
pub(crate) fn count(number: impl Into<u128>) -> String {
    let digits = number.into().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn counted(number: impl Into<u128>, thing: &str) -> String {
    let number = number.into();
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Four significant digits: `0.02134`, `-1.5`, `3.052e-5`. Whole numbers of up to seven digits are
/// shown in full.
pub(crate) fn number(number: f64) -> String {
    let magnitude = number.abs();
    if number == number.trunc() && magnitude < 1e7 {
        return format!("{}", number + 0.0);
    }
    if !(1e-4..1e6).contains(&magnitude) {
        return if number.is_finite() { format!("{number:.3e}") } else { format!("{number}") };
    }
    // The digits before the point, or minus the zeros after it.
    let exponent = magnitude.log10().floor() as i32;
    let decimals = usize::try_from(3 - exponent).unwrap_or_default();
    let text = format!("{number:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// Displays the bits of an element, with one digit after the point.
pub(crate) fn bits_each(bytes: u64, parameters: u64) -> String {
    match parameters {
        0 => "–".into(),
        _ => format!("{:.1}", bytes as f64 * 8.0 / parameters as f64),
    }
}

/// `97.5 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// Decimal units, as on the Hub: `512 B`, `90.9 MB`.
pub(crate) fn size(bytes: impl Into<u128>) -> String {
    let bytes = bytes.into();
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut unit = 1_u128;
    for name in ["kB", "MB", "GB", "TB", "PB"] {
        unit *= 1000;
        // Rounded to tenths before it is compared, so that 999,999 bytes are 1.0 MB and not 1000.0
        // kB.
        let tenths = rounded_tenths(bytes, unit);
        if tenths < 10_000 {
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
    }
    let tenths = rounded_tenths(bytes, unit * 1000);
    format!("{}.{} EB", count(tenths / 10), tenths % 10)
}

fn rounded_tenths(bytes: u128, unit: u128) -> u128 {
    let tenth = unit / 10;
    bytes / tenth + u128::from(bytes % tenth >= tenth / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(shape(&[]), "[]");
        assert_eq!(shape(&[0]), "[0]");
        assert_eq!(shape(&[30522, 384]), "[30522, 384]");
        assert_eq!(shape(&[1; 5000]), "[1, 1, 1, 1, 1, 1, …, 1, 1, 1, 1, 1, 1] (5,000 dimensions)");
    }

    #[test]
    fn counts() {
        assert_eq!(count(0_u64), "0");
        assert_eq!(count(999_u64), "999");
        assert_eq!(count(1000_u64), "1,000");
        assert_eq!(count(22_713_728_u64), "22,713,728");
        assert_eq!(counted(1_u64, "tensor"), "1 tensor");
        assert_eq!(counted(0_u64, "tensor"), "0 tensors");
    }

    #[test]
    fn measured_numbers() {
        let shown = [
            0.0,
            -0.0,
            1.5,
            -0.0213456,
            0.5,
            123.456,
            99_999.6,
            3.05e-5,
            1e300,
            1234567.0,
            f64::NAN,
            f64::INFINITY,
        ];
        let shown = shown.map(number);
        let expected = [
            "0",
            "0",
            "1.5",
            "-0.02135",
            "0.5",
            "123.5",
            "100000",
            "3.050e-5",
            "1.000e300",
            "1234567",
            "NaN",
            "inf",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn sizes_round_before_the_unit_is_chosen() {
        assert_eq!(size(0_u64), "0 B");
        assert_eq!(size(999_u64), "999 B");
        assert_eq!(size(1000_u64), "1.0 kB");
        assert_eq!(size(1049_u64), "1.0 kB");
        assert_eq!(size(1050_u64), "1.1 kB");
        assert_eq!(size(999_949_u64), "999.9 kB");
        assert_eq!(size(999_950_u64), "1.0 MB");
        assert_eq!(size(90_856_960_u64), "90.9 MB");
        assert_eq!(size(u64::MAX), "18.4 EB");
        assert_eq!(size(u128::from(u64::MAX) * 1000), "18,446.7 EB");
    }
}
