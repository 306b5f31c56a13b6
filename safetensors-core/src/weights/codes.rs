//! [`Codes`]: codes of a few bits.

use crate::format::convert::{ConvertOptions, decode_bytes, decode_four, vectorized};
use crate::format::dtype::Dtype;
use crate::format::tensor::TensorView;

/// The layout of codes in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A stream, the first code in the lowest bits.
    LowFirst,
    /// Two codes in a byte, the first in the high bits.
    HighFirst,
    /// Words of 32 bits with complete codes, the first in the lowest bits.
    WholeWords,
    /// Eight codes in a word of 32 bits, in the order of AWQ.
    Awq,
}

/// The position in a word of each of eight columns.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

#[derive(Clone, Debug)]
pub(crate) struct Codes {
    pub(super) bits: usize,
    pub(super) order: Order,
    /// 2^bits numbers.
    values: Vec<f32>,
    rule: Rule,
    dtype: Option<Dtype>,
    /// The numbers of each byte, if it has complete codes in order.
    of_bytes: Vec<f32>,
}

/// How the number of a code is found, exactly.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// ((code + `turn`) mod 2^bits) + `first`
    Integer {
        turn: u32,
        first: i32,
    },
    /// F4, plus a zero: without a negative zero if that is not negative.
    Four {
        zero: f32,
    },
    Table,
}

impl Rule {
    fn detect(values: &[f32]) -> Self {
        let are = |number: &dyn Fn(u32) -> f32| {
            (0..).zip(values).all(|(code, value)| number(code).to_bits() == value.to_bits())
        };
        let mask = values.len() as u32 - 1;
        let lowest = (0..).zip(values).min_by(|(_, a), (_, b)| a.total_cmp(b));
        let (lowest, first) = lowest.map_or((0, 0), |(code, value)| (code, *value as i32));
        let turn = (mask + 1 - lowest) & mask;
        if are(&|code| integer(code, mask, turn, first)) {
            return Self::Integer { turn, first };
        }
        let zero = [-0.0, 0.0]
            .into_iter()
            .find(|zero| mask == 15 && are(&|code| decode_four(code) + zero));
        zero.map_or(Self::Table, |zero| Self::Four { zero })
    }
}

#[inline(always)]
fn integer(code: u32, mask: u32, turn: u32, first: i32) -> f32 {
    ((code.wrapping_add(turn) & mask) as i32).wrapping_add(first) as f32
}

/// Compiles a loop for each rule.
macro_rules! by_rule {
    ($codes:expr, $number:ident => $work:expr) => {{
        let values = &$codes.values[..];
        let mask = values.len() as u32 - 1;
        match $codes.rule {
            Rule::Integer { turn, first } => {
                let $number = |code: u32| integer(code, mask, turn, first);
                vectorized(|| $work);
            }
            Rule::Four { zero } => {
                let $number = |code: u32| decode_four(code & 15) + zero;
                vectorized(|| $work);
            }
            // Tables of 16 numbers in vector registers were no faster on an Intel Xeon.
            Rule::Table => {
                match (<&[f32; 256]>::try_from(values), <&[f32; 16]>::try_from(values)) {
                    // Without checks of bounds.
                    (Ok(values), _) => {
                        let $number = |code: u32| values[code as usize & 255];
                        $work;
                    }
                    (_, Ok(values)) => {
                        let $number = |code: u32| values[code as usize & 15];
                        $work;
                    }
                    _ => {
                        let $number = |code: u32| values[(code & mask) as usize];
                        $work;
                    }
                }
            }
        }
    }};
}

impl Codes {
    pub(super) fn new(bits: usize, order: Order, values: Vec<f32>) -> Self {
        debug_assert!(values.len() == 1 << bits);
        // Words of such codes are full.
        let is_stream = order == Order::WholeWords && 8 % bits == 0;
        let order = if is_stream { Order::LowFirst } else { order };
        let per_byte = 8 / bits;
        let mut of_bytes = Vec::new();
        if 8 % bits == 0 && bits < 8 && order != Order::Awq {
            for byte in 0..256 {
                for number in 0..per_byte {
                    let place =
                        if order == Order::HighFirst { per_byte - 1 - number } else { number };
                    of_bytes.push(values[byte >> (place * bits) & (values.len() - 1)]);
                }
            }
        }
        let rule = Rule::detect(&values);
        Self { bits, order, values, rule, dtype: None, of_bytes }
    }

    /// The number is the code minus `offset`.
    pub(super) fn unsigned(bits: usize, order: Order, offset: i32) -> Self {
        let values = (0..1_i32 << bits).map(|code| (code - offset) as f32);
        Self::new(bits, order, values.collect())
    }

    /// The number is the code in two's complement.
    pub(super) fn signed(bits: usize, order: Order) -> Self {
        let half = 1_i32 << (bits - 1);
        let values =
            (0..2 * half).map(|code| if code < half { code } else { code - 2 * half } as f32);
        Self::new(bits, order, values.collect())
    }

    pub(crate) fn of_dtype(dtype: Dtype, order: Order) -> Option<Self> {
        let bits = usize::try_from(dtype.bits()).ok().filter(|bits| *bits <= 8)?;
        // Eight codes of n bits fill n bytes.
        let codes: Vec<_> = (0..1_u64 << bits).collect();
        let words =
            codes.chunks(8).map(|codes| codes.iter().rfold(0, |word, it| word << bits | it));
        let bytes: Vec<_> =
            words.flat_map(|word: u64| word.to_le_bytes().into_iter().take(bits)).collect();
        let shape = [codes.len()];
        let values = TensorView::new(dtype, &shape, &bytes).ok()?;
        let values = values.convert(Dtype::F32, &ConvertOptions::new()).ok()?.into_vec().ok()?;
        Some(Self { dtype: Some(dtype), ..Self::new(bits, order, values) })
    }

    pub(super) fn with(mut self, code: usize, value: f32) -> Self {
        self.values[code] = value;
        Self::new(self.bits, self.order, self.values)
    }

    pub(super) fn bit(&self, column: u64) -> u64 {
        let bits = self.bits as u64;
        match self.order {
            Order::LowFirst => column * bits,
            Order::HighFirst => (column ^ 1) * bits,
            Order::WholeWords => {
                let per_word = 32 / bits;
                column / per_word * 32 + column % per_word * bits
            }
            Order::Awq => column / 8 * 32 + AWQ[(column % 8) as usize] as u64 * bits,
        }
    }

    /// Returns the bytes with these columns, if the first code is at bit `start`.
    pub(super) fn bytes(
        &self,
        start: u64,
        columns: &std::ops::Range<usize>,
    ) -> std::ops::Range<u64> {
        let first = columns.start as u64;
        let last = (columns.end as u64).saturating_sub(1);
        match self.order {
            Order::LowFirst => {
                let end = start + (last + 1) * self.bits as u64;
                (start + self.bit(first)) / 8..end.div_ceil(8)
            }
            Order::HighFirst => (start + first * 4) / 8..(start + last * 4) / 8 + 1,
            Order::WholeWords => {
                let per_word = 32 / self.bits as u64;
                start / 8 + first / per_word * 4..start / 8 + (last / per_word + 1) * 4
            }
            Order::Awq => start / 8 + first / 8 * 4..start / 8 + (last / 8 + 1) * 4,
        }
    }

    /// Decodes columns from `first` on, of the [`bytes`](Codes::bytes) that hold them.
    pub(super) fn decode(&self, bytes: &[u8], start: u64, first: usize, out: &mut [f32]) {
        let begin = self.bytes(start, &(first..first + out.len())).start * 8;
        if self.bits == 8 {
            let bytes = &bytes[..out.len()];
            if !self.dtype.is_some_and(|dtype| decode_bytes(dtype, bytes, out)) {
                self.decode_units(bytes.as_chunks::<1>().0, 0, out);
            }
            return;
        }
        if self.order == Order::Awq && first.is_multiple_of(8) {
            for (values, word) in out.chunks_mut(8).zip(bytes.chunks_exact(4)) {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                for (value, place) in values.iter_mut().zip(AWQ) {
                    *value = self.values[(word >> (4 * place)) as usize & 15];
                }
            }
            return;
        }
        let per_byte = 8 / self.bits;
        // A row of complete bytes; the position of high-first codes must be even in the stream.
        let flat = start / self.bits as u64 + first as u64;
        if !self.of_bytes.is_empty() && start.is_multiple_of(self.bits as u64) {
            let skipped = (flat % per_byte as u64) as usize;
            let (head, out) = out.split_at_mut(((per_byte - skipped) % per_byte).min(out.len()));
            let (first_byte, rest) = bytes.split_at(usize::from(!head.is_empty()));
            if let Some(&byte) = first_byte.first() {
                let values = &self.of_bytes[usize::from(byte) * per_byte + skipped..];
                head.copy_from_slice(&values[..head.len()]);
            }
            self.decode_bytes(rest, out);
            return;
        }
        for (number, value) in out.iter_mut().enumerate() {
            let bit = start + self.bit((first + number) as u64) - begin;
            let byte = (bit / 8) as usize;
            let low = u16::from(bytes[byte]);
            let high = u16::from(bytes.get(byte + 1).copied().unwrap_or(0));
            let code = (low | high << 8) >> (bit % 8);
            *value = self.values[usize::from(code) & (self.values.len() - 1)];
        }
    }

    /// The last byte may have more numbers than wanted.
    fn decode_bytes(&self, bytes: &[u8], out: &mut [f32]) {
        match self.bits {
            4 => self.decode_whole::<2>(bytes, out),
            2 => self.decode_whole::<4>(bytes, out),
            _ => self.decode_whole::<8>(bytes, out),
        }
    }

    fn decode_whole<const N: usize>(&self, bytes: &[u8], out: &mut [f32]) {
        let Ok(table) = <&[[f32; N]; 256]>::try_from(self.of_bytes.as_chunks::<N>().0) else {
            return;
        };
        let (whole, rest) = out.as_chunks_mut::<N>();
        if let Some(&byte) = bytes.get(whole.len()).filter(|_| !rest.is_empty()) {
            rest.copy_from_slice(&table[usize::from(byte)][..rest.len()]);
        }
        let pairs = whole.iter_mut().zip(bytes);
        if let Rule::Table = self.rule {
            pairs.for_each(|(values, &byte)| *values = table[usize::from(byte)]);
            return;
        }
        let bits = 8 / N;
        let turned = if self.order == Order::HighFirst { 8 - bits } else { 0 };
        by_rule!(self, number => pairs.for_each(|(values, &byte)| {
            *values = std::array::from_fn(|at| number(u32::from(byte) >> ((at * bits) ^ turned)));
        }));
    }

    /// Each unit of `N` bytes has one code, from bit `shift` on.
    pub(super) fn decode_units<const N: usize>(
        &self,
        units: &[[u8; N]],
        shift: usize,
        out: &mut [f32],
    ) {
        let pairs = out.iter_mut().zip(units);
        by_rule!(self, number => pairs.for_each(|(value, unit)| {
            let mut word = [0; 4];
            word[..N].copy_from_slice(unit);
            *value = number(u32::from_le_bytes(word) >> shift);
        }));
    }

    pub(crate) fn value(&self, code: u32) -> f32 {
        self.values[code as usize & (self.values.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::convert::{CHOSEN, widths};

    #[test]
    fn every_order_finds_every_code_from_every_column_on() {
        for (bits, order) in [
            (1, Order::LowFirst),
            (2, Order::LowFirst),
            (3, Order::LowFirst),
            (4, Order::LowFirst),
            (5, Order::LowFirst),
            (6, Order::LowFirst),
            (7, Order::LowFirst),
            (8, Order::LowFirst),
            (4, Order::HighFirst),
            (3, Order::WholeWords),
            (5, Order::WholeWords),
            (4, Order::WholeWords),
            (4, Order::Awq),
        ] {
            let codes = Codes::unsigned(bits, order, 0);
            let columns = 48;
            for start in [0, 32, 64] {
                let expected: Vec<_> = (0..columns).map(|i| (i * 7 + 3) % (1 << bits)).collect();
                let mut row = [0_u8; 64];
                for (column, &code) in expected.iter().enumerate() {
                    let at = (start + codes.bit(column as u64)) as usize;
                    for bit in 0..bits {
                        row[(at + bit) / 8] |= ((code >> bit & 1) << ((at + bit) % 8)) as u8;
                    }
                }
                for first in 0..columns {
                    for end in first + 1..=columns {
                        let range = codes.bytes(start, &(first..end));
                        let bytes = &row[range.start as usize..range.end as usize];
                        let mut found = vec![0.0; end - first];
                        codes.decode(bytes, start, first, &mut found);
                        let wanted: Vec<_> =
                            expected[first..end].iter().map(|&code| code as f32).collect();
                        assert_eq!(found, wanted, "{bits} {order:?} from {start}: {first}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn arithmetic_finds_the_numbers_of_the_table_on_every_processor() {
        let four = |order| Codes::of_dtype(Dtype::F4, order).unwrap();
        for codes in [
            Codes::unsigned(1, Order::LowFirst, 0),
            Codes::signed(2, Order::LowFirst),
            Codes::signed(4, Order::LowFirst),
            Codes::unsigned(4, Order::HighFirst, 8),
            Codes::new(4, Order::LowFirst, (0..16).map(|code| ((code + 1) & 15) as f32).collect()),
            four(Order::LowFirst),
            four(Order::HighFirst).with(8, 0.0),
            Codes::signed(8, Order::LowFirst),
        ] {
            assert!(!matches!(codes.rule, Rule::Table), "{codes:?}");
            let bytes: Vec<u8> = (0..=255).collect();
            let of_column = |column: usize| {
                let bit = codes.bit(column as u64) as usize;
                let code = usize::from(bytes[bit / 8] >> (bit % 8));
                codes.values[code & (codes.values.len() - 1)].to_bits()
            };
            for arch in widths() {
                let mut found = vec![0.0_f32; 256 * 8 / codes.bits];
                CHOSEN.set(Some(arch));
                codes.decode(&bytes, 0, 0, &mut found);
                CHOSEN.set(None);
                let expected = (0..found.len()).map(of_column);
                assert!(found.iter().map(|x| x.to_bits()).eq(expected), "{codes:?} by {arch:?}");
            }
        }
    }

    #[test]
    fn codes_of_dtypes_are_their_numbers() {
        let e2m1 = Codes::of_dtype(Dtype::F4, Order::LowFirst).unwrap();
        assert_eq!(e2m1.values[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(e2m1.values[15], -6.0);
        let scales = Codes::of_dtype(Dtype::F8_E8M0, Order::LowFirst).unwrap();
        assert_eq!((scales.values[127], scales.values[125]), (1.0, 0.25));
        assert!(scales.values[255].is_nan());
        assert_eq!(Codes::of_dtype(Dtype::F6_E2M3, Order::LowFirst).unwrap().values.len(), 64);
        assert_eq!(Codes::of_dtype(Dtype::I8, Order::LowFirst).unwrap().values[255], -1.0);
        assert_eq!(Codes::signed(4, Order::LowFirst).values[15], -1.0);
        assert!(Codes::of_dtype(Dtype::F16, Order::LowFirst).is_none());
    }
}
