//! [`integer`]: options that take a whole number.

use std::ops::RangeInclusive;

pub(crate) fn integer<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match range.end() {
            &u64::MAX => format!("expected a whole number from {} on", range.start()),
            most => format!("expected a whole number from {} to {most}", range.start()),
        })
    }
}
