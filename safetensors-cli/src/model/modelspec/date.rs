//! Checks whether a text is an ISO 8601 date.

use jiff::civil::Time;
use jiff::fmt::temporal::Pieces;

const SECONDS_OF_A_DAY: i32 = 24 * 60 * 60;

/// Returns `true` for an ISO 8601 date in the basic or the extended format, with or without a time.
///
/// A date is `YYYY`, `YYYY-MM`, `YYYY-MM-DD` or `YYYYMMDD`. After a day may follow `T` and a time:
/// `hh`, `hh:mm`, `hh:mm:ss`, or without colons, with a decimal fraction of the last part, and a
/// zone: `Z`, `±hh`, `±hh:mm` or `±hhmm`. Dates by week (`2023-W28-7`) and by day of the year
/// (`2023-197`) are refused.
// The hyphen is `-`, or U+2010, which the text of the ModelSpec standard itself uses.
pub(super) fn is_date(text: &str) -> bool {
    let text = text.replace('\u{2010}', "-");
    // jiff reads more than ISO 8601, so these are refused here: a sign before the year, a space or
    // lower-case letters, the name of a time zone in brackets.
    let is_allowed = |c: char| c.is_ascii_digit() || "TZ:.,+-".contains(c);
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(is_allowed) {
        return false;
    }
    match (text.split_once('T'), text.len()) {
        (Some((day, time)), _) => is_day_and_time(day, time),
        // jiff needs a whole date, so the first month and day are added to a year or a month.
        (None, 4) => is_day(&format!("{text}-01-01")),
        (None, 7) => is_day(&format!("{text}-01")),
        (None, _) => is_day(&text),
    }
}

fn is_day(text: &str) -> bool {
    Pieces::parse(text).is_ok()
}

fn is_day_and_time(day: &str, time: &str) -> bool {
    let (clock, zone) = time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len()));
    // jiff reads fractions of seconds only, with at most nine digits. ISO 8601 also allows
    // fractions of hours and minutes, and any length. So the fraction is checked here.
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return false;
    }
    // jiff does not read 24:00, which ISO 8601 allows for midnight at the end of a day.
    let is_24 = clock.starts_with("24");
    let clock = if is_24 { clock.replacen("24", "00", 1) } else { clock.into() };
    let text = format!("{day}T{clock}{zone}");
    let Ok(pieces) = Pieces::parse(&text) else { return false };
    // jiff also reads zones with seconds, and zones of up to 25 hours, which ISO 8601 does not
    // allow.
    let zone_is_short = zone.len() <= "+hh:mm".len()
        && pieces
            .to_numeric_offset()
            .is_none_or(|offset| offset.seconds().abs() < SECONDS_OF_A_DAY);
    let is_midnight =
        pieces.time() == Some(Time::midnight()) && fraction.bytes().all(|c| c == b'0');
    pieces.time().is_some() && (!is_24 || is_midnight) && zone_is_short
}

#[cfg(test)]
mod tests {
    use super::is_date;

    #[test]
    fn dates_of_iso_8601_are_recognised() {
        for date in [
            "2023",
            "2023-07",
            "2023-07-16",
            "20230716",
            "2024-02-29",
            "2000-02-29",
            "2023-07-16T18",
            "2023-07-16T18,5",
            "2023-07-16T18:13.25Z",
            "2023-07-16T18:13",
            "2023-07-16T18:13:38",
            "2023-07-16T18:13:38Z",
            "2023-07-16T18:13:38.123456",
            "2023-07-16T18:13:38.12345678901234567890+23:59",
            "2023-07-16T18:13:38,5+02:00",
            "20230716T181338-0330",
            "2023-07-16T18:13+02",
            "2023-07-16T24",
            "2023-07-16T24:00:00",
            "2023-07-16T24:00:00.000Z",
            "2016-12-31T23:59:60Z",
            // As the model standard writes it.
            "2023\u{2010}07\u{2010}16T18:13:38Z",
        ] {
            assert!(is_date(date), "{date}");
        }
    }

    #[test]
    fn other_texts_are_not_dates() {
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
            // Dates by day of the year, and by week.
            "2024-366",
            "2023-001",
            "2023001",
            "2023-W01-1",
            "2023W537",
            "2023-07T18:13",
            "2023T18",
            "2023-07-16T",
            "2023-07-16T25",
            "2023-07-16T24:01",
            "2023-07-16T24:00:00.5",
            "2023-07-16T2400:00",
            "2023-07-16T18:60",
            "2023-07-16T18:13:61",
            "2023-07-16T18:1338",
            "2023-07-16T1813:38",
            "2023-07-16T18:13:38.",
            "2023-07-16T.5",
            "2023-07-16T18:13:38.5.5",
            "2023-07-16T18:13:38.+02:00",
            "2023-07-16T18:13:38ZZ",
            "2023-07-16T18:13:38+",
            "2023-07-16T18:13:38+24:00",
            "2023-07-16T18:13:38-24",
            "2023-07-16T18:13:38+02:00:00",
            "2023-07-16T18:13:38+02.5",
            "2023-07-16+02:00",
            "2023-07-16Z",
            "2023-07-16T18:13:38+02:",
            "2023-07-16T18:13:38:00",
            "2023-07-16t18:13:38z",
            "2023/07/16",
            "16.07.2023",
            "yesterday",
            "２０２３",
            "+023",
            "2023-\u{2010}7-16",
            // jiff reads these, but they are not ISO 8601 dates as files write them.
            "+002023-07-16",
            "-000001-07-16",
            "2023-07-16 18:13:38",
            "2023-07-16T18:13:38z",
            "2023-07-16T18:13:38+02:00[Europe/Berlin]",
            "2023-07-16[u-ca=gregory]",
        ] {
            assert!(!is_date(text), "{text}");
        }
    }
}
