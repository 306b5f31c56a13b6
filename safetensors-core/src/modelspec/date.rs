//! Whether text is a date of ISO 8601.

/// Whether the text is a date of ISO 8601 in the basic or the extended format, with or without a
/// time.
///
/// Dates: `YYYY`, `YYYY-MM`, `YYYY-MM-DD`, `YYYYMMDD`, `YYYY-DDD`, `YYYYDDD`, `YYYY-Www-D`,
/// `YYYYWwwD`. After a whole day may follow `T` and a time, `hh`, `hh:mm`, `hh:mm:ss` or the same
/// without colons, with a decimal fraction of its last part, and a zone: `Z`, `±hh`, `±hh:mm`,
/// `±hhmm`. The hyphen is `-` or the one of Unicode (U+2010), which the text of the model standard
/// itself uses.
pub(super) fn is_date(text: &str) -> bool {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    match (is_day(date), time) {
        (true, None) => true,
        (true, Some(time)) => is_time(time),
        (false, None) => is_year_or_month(date),
        (false, Some(_)) => false,
    }
}

/// A whole day, in one of the three ways to name one.
fn is_day(text: &str) -> bool {
    let mut rest = Text(text);
    let Some(year) = rest.digits(4) else { return false };
    let extended = rest.hyphen();
    if rest.byte(b'W') {
        let week = rest.digits(2);
        let hyphen = rest.hyphen();
        let day = rest.digits(1);
        return matches!((week, day), (Some(1..=53), Some(1..=7)))
            && hyphen == extended
            && rest.is_at_end();
    }
    if rest.0.len() == 3 {
        let days = if is_leap(year) { 366 } else { 365 };
        return rest.digits(3).is_some_and(|day| (1..=days).contains(&day));
    }
    let month = rest.digits(2);
    let hyphen = rest.hyphen();
    let day = rest.digits(2);
    let (Some(month @ 1..=12), Some(day)) = (month, day) else { return false };
    (1..=days_in(year, month)).contains(&day) && hyphen == extended && rest.is_at_end()
}

fn is_year_or_month(text: &str) -> bool {
    let mut rest = Text(text);
    let year = rest.digits(4).is_some();
    let month = !rest.hyphen() || matches!(rest.digits(2), Some(1..=12));
    year && month && rest.is_at_end()
}

fn is_time(text: &str) -> bool {
    let mut rest = Text(text);
    let Some(hour @ 0..=24) = rest.digits(2) else { return false };
    let mut later = 0;
    let mut extended = None;
    // Minutes, then seconds, which may be 60 for a leap second.
    for limit in [59, 60] {
        let colon = rest.byte(b':');
        if !colon && !rest.starts_with_digit() {
            break;
        }
        match rest.digits(2) {
            Some(part) if part <= limit && extended.is_none_or(|extended| extended == colon) => {
                later += part
            }
            _ => return false,
        }
        extended = Some(colon);
    }
    if rest.byte(b'.') || rest.byte(b',') {
        if !rest.starts_with_digit() {
            return false;
        }
        while rest.starts_with_digit() {
            later += rest.digits(1).unwrap_or(0);
        }
    }
    // 24 is midnight at the end of a day, and nothing after it.
    (hour < 24 || later == 0) && is_zone(rest)
}

fn is_zone(mut rest: Text<'_>) -> bool {
    if rest.is_at_end() || rest.byte(b'Z') {
        return rest.is_at_end();
    }
    if !(rest.byte(b'+') || rest.hyphen()) || !matches!(rest.digits(2), Some(0..=23)) {
        return false;
    }
    let colon = rest.byte(b':');
    let minutes = !(colon || rest.starts_with_digit()) || matches!(rest.digits(2), Some(0..=59));
    minutes && rest.is_at_end()
}

fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Text that is taken from the front.
struct Text<'a>(&'a str);

impl Text<'_> {
    /// Takes exactly this many decimal digits, up to nine.
    fn digits(&mut self, count: usize) -> Option<u32> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        self.0 = rest;
        digits.parse().ok()
    }

    /// Takes a hyphen, if one is next.
    fn hyphen(&mut self) -> bool {
        self.take(&['-', '\u{2010}'])
    }

    /// Takes this byte, if it is next.
    fn byte(&mut self, byte: u8) -> bool {
        self.take(&[char::from(byte)])
    }

    fn take(&mut self, chars: &[char]) -> bool {
        match self.0.strip_prefix(chars) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn starts_with_digit(&self) -> bool {
        self.0.starts_with(|c: char| c.is_ascii_digit())
    }

    fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::is_date;

    #[test]
    fn dates_of_iso_8601() {
        for date in [
            "2023",
            "2023-07",
            "2023-07-16",
            "20230716",
            "2024-02-29",
            "2000-02-29",
            "2024-366",
            "2023-001",
            "2023001",
            "2023-W01-1",
            "2023W537",
            "2023-07-16T18",
            "2023-07-16T18:13",
            "2023-07-16T18:13:38",
            "2023-07-16T18:13:38Z",
            "2023-07-16T18:13:38.123456",
            "2023-07-16T18:13:38,5+02:00",
            "20230716T181338-0330",
            "2023-07-16T18:13+02",
            "2023-07-16T24:00:00",
            "2016-12-31T23:59:60Z",
            // As the model standard writes it.
            "2023\u{2010}07\u{2010}16T18:13:38Z",
        ] {
            assert!(is_date(date), "{date}");
        }
    }

    #[test]
    fn what_is_no_date() {
        for text in [
            "",
            "T",
            "202",
            "20234",
            "2023-",
            "2023-7-16",
            "2023-13",
            "2023-00-01",
            "2023-02-29",
            "1900-02-29",
            "2023-04-31",
            "2023-07-16 ",
            " 2023-07-16",
            "2023-0716",
            "202307-16",
            "2023-366",
            "2023-000",
            "2023-W54-1",
            "2023-W01-8",
            "2023-W011",
            "2023-07T18:13",
            "2023T18",
            "2023-07-16T",
            "2023-07-16T25",
            "2023-07-16T24:01",
            "2023-07-16T18:60",
            "2023-07-16T18:13:61",
            "2023-07-16T18:1338",
            "2023-07-16T1813:38",
            "2023-07-16T18:13:38.",
            "2023-07-16T18:13:38ZZ",
            "2023-07-16T18:13:38+",
            "2023-07-16T18:13:38+24:00",
            "2023-07-16T18:13:38+02:",
            "2023-07-16T18:13:38:00",
            "2023-07-16t18:13:38z",
            "2023/07/16",
            "16.07.2023",
            "yesterday",
            "２０２３",
            "+023",
            "2023-\u{2010}7-16",
        ] {
            assert!(!is_date(text), "{text}");
        }
    }
}
