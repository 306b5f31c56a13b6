//! [`CompactSummaries`]: the statistics of a million tensors, in few bytes each.
//!
//! Counts are mostly small, and numbers mostly equal to the one before or short in binary.

use std::collections::BTreeMap;

use super::Summary;
use super::histogram::Histogram;
use super::moments::Moments;

/// The summaries of tensors, by their indices.
pub(super) struct CompactSummaries<'a> {
    asked: &'a [f64],
    bins: u16,
    /// Where each summary begins among the bytes; 0 if there is none.
    places: Vec<u64>,
    bytes: Vec<u8>,
    /// Why a tensor has no summary.
    errors: BTreeMap<usize, String>,
}

impl<'a> CompactSummaries<'a> {
    /// Makes room for this many tensors.
    pub(super) fn new(tensors: usize, asked: &'a [f64], bins: u16) -> Self {
        let errors = BTreeMap::new();
        Self { asked, bins, places: vec![0; tensors], bytes: vec![0], errors }
    }

    pub(super) fn keep(&mut self, tensor: usize, summary: &Summary<'_>) {
        self.places[tensor] = self.bytes.len() as u64;
        let mut writer = SummaryWriter { bytes: &mut self.bytes, last: 0 };
        let Summary { moments, percentiles, histogram } = summary;
        let Moments { finite, zeros, nan, infinite, min, max, mean, std, .. } = *moments;
        [finite, zeros, nan, infinite].into_iter().for_each(|count| writer.count(count));
        // These exist if there are finite values.
        let numbers = [min, max, mean, std].into_iter().flatten();
        numbers.chain(percentiles.found.iter().copied()).for_each(|number| writer.number(number));
        if let Some(histogram) = histogram {
            let Histogram { min, max, counts, below, above } = &**histogram;
            [min, max].into_iter().for_each(|&number| writer.number(number));
            [below, above].into_iter().chain(counts).for_each(|&count| writer.count(count));
        }
    }

    pub(super) fn fail(&mut self, tensor: usize, error: String) {
        self.errors.insert(tensor, error);
    }

    /// Returns an empty summary if none is kept.
    pub(super) fn summary(&self, tensor: usize) -> Summary<'a> {
        let mut summary = Summary::empty(self.asked);
        let bytes = match self.places.get(tensor) {
            Some(&place @ 1..) => self.bytes.get(place as usize..).unwrap_or_default(),
            _ => return summary,
        };
        let mut reader = SummaryReader { bytes: bytes.iter(), last: 0 };
        let Moments { finite, zeros, nan, infinite, min, max, mean, std, .. } =
            &mut summary.moments;
        for count in [&mut *finite, zeros, nan, infinite] {
            *count = reader.count();
        }
        if *finite == 0 {
            return summary;
        }
        for number in [min, max, mean, std] {
            *number = Some(reader.number());
        }
        summary.percentiles.found = self.asked.iter().map(|_| reader.number()).collect();
        if self.bins > 0 {
            let (min, max) = (reader.number(), reader.number());
            let (below, above) = (reader.count(), reader.count());
            let counts = (0..self.bins).map(|_| reader.count()).collect();
            summary.histogram = Some(Box::new(Histogram { min, max, counts, below, above }));
        }
        summary
    }

    pub(super) fn error(&self, tensor: usize) -> Option<&str> {
        self.errors.get(&tensor).map(String::as_str)
    }

    /// Returns all reasons in the order of the tensors.
    pub(super) fn errors(&self) -> impl Iterator<Item = &String> {
        self.errors.values()
    }
}

struct SummaryWriter<'b> {
    bytes: &'b mut Vec<u8>,
    /// The bits of the last number.
    last: u64,
}

impl SummaryWriter<'_> {
    /// Seven bits a byte, lowest first. The highest bit announces more.
    fn count(&mut self, mut count: u64) {
        while count >= 0x80 {
            self.bytes.push(count as u8 | 0x80);
            count >>= 7;
        }
        self.bytes.push(count as u8);
    }

    /// The difference from the last number.
    // The bytes are swapped, because most numbers end in zeros.
    fn number(&mut self, number: f64) {
        let bits = number.to_bits();
        self.count((bits ^ self.last).swap_bytes());
        self.last = bits;
    }
}

struct SummaryReader<'b> {
    bytes: std::slice::Iter<'b, u8>,
    last: u64,
}

impl SummaryReader<'_> {
    fn count(&mut self) -> u64 {
        let (mut count, mut shift) = (0, 0);
        for &byte in self.bytes.by_ref() {
            count |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        count
    }

    fn number(&mut self) -> f64 {
        self.last ^= self.count().swap_bytes();
        f64::from_bits(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution::Distribution;
    use super::super::gather::TensorValues;
    use super::*;

    #[test]
    fn compact_summaries_are_restored_bit_for_bit() {
        let asked = [0.1, 50.0, 99.0];
        for bins in [0, 1, 24, 256] {
            let summaries = [
                vec![0.0],
                vec![],
                vec![f64::NAN, f64::INFINITY],
                vec![f64::MIN, 5e-324, -0.1, f64::MAX, 1e300],
                (0..1000).map(|i| f64::from(i).sqrt()).collect(),
            ]
            .map(|values| {
                let mut moments = Moments::default();
                moments.add(&values);
                let values = Distribution::of_values(&mut values.clone());
                Summary::new(&TensorValues { moments, values }, &asked, bins)
            });
            let mut kept = CompactSummaries::new(7, &asked, bins);
            summaries.iter().enumerate().for_each(|(i, summary)| kept.keep(i, summary));
            kept.fail(5, "a reason".into());
            let json = |summary: &Summary<'_>| serde_json::to_string(summary).unwrap();
            for (i, summary) in summaries.iter().enumerate() {
                assert_eq!(json(&kept.summary(i)), json(summary), "{bins} {i}");
            }
            for none in [5, 6] {
                assert_eq!(json(&kept.summary(none)), json(&Summary::empty(&asked)));
            }
            assert_eq!((kept.error(4), kept.error(5)), (None, Some("a reason")));
        }
    }

    #[test]
    fn every_count_comes_back() {
        let (mut bytes, counts) = (Vec::new(), [0, 1, 127, 128, 1 << 35, u64::MAX]);
        let mut writer = SummaryWriter { bytes: &mut bytes, last: 0 };
        counts.into_iter().for_each(|count| writer.count(count));
        let mut reader = SummaryReader { bytes: bytes.iter(), last: 0 };
        assert_eq!(counts.map(|_| reader.count()), counts);
    }
}
