//! [`Slice`]: the selected values of a tensor, as in NumPy: `[0:3, -1, ::2]`.

use safetensors_core::LazyTensor;
use safetensors_core::framework::Quoted;
use safetensors_core::slice::Index;

use crate::terminal::text;

/// A slice as written, for any tensor.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    /// `None` for `...`: all of the remaining dimensions.
    parts: Vec<(Option<Index>, TextPlace)>,
}

type TextPlace = usize;

type Wrong = (TextPlace, String);

impl Slice {
    /// The error shows the place of the problem.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Parser { text, rest: text }.slice().map_err(|(at, problem)| {
            // The mark must be below the same text, which a terminal shows unchanged.
            let mark = if text.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
                format!("\n\n    {text}\n    {:>1$}", '^', at + 1)
            } else {
                String::new()
            };
            format!("{problem} at character {}{mark}", at + 1)
        })
    }

    /// Returns the selected positions. As in NumPy, ranges are cut at the end of a dimension, and
    /// the last dimensions may be missing.
    pub(crate) fn select<S>(&self, tensor: &LazyTensor<'_, S>) -> anyhow::Result<Selection> {
        self.select_of(tensor.shape()).map_err(|(at, problem)| {
            let name = Quoted(tensor.name());
            let problem = format!("tensor {name}: slice, character {}: {problem}", at + 1);
            match tensor.file() {
                Some(file) => anyhow::anyhow!("{}: {problem}", text::path(file)),
                None => anyhow::anyhow!("{problem}"),
            }
        })
    }

    fn select_of(&self, shape: &[usize]) -> Result<Selection, Wrong> {
        let named = self.parts.iter().filter(|(part, _)| part.is_some()).count();
        let rest = shape.len().saturating_sub(named);
        let mut dims = Vec::with_capacity(shape.len());
        for &(part, place) in &self.parts {
            let Some(index) = part else {
                dims.extend(shape[dims.len()..][..rest].iter().map(|&len| Dim::whole(len)));
                continue;
            };
            let dim = dims.len();
            let Some(&len) = shape.get(dim) else {
                let found = text::counted(shape.len() as u64, "dimension");
                return Err((place, format!("the tensor has only {found}")));
            };
            let Some(taken) = Dim::new(index, len) else {
                let problem = format!("position {index} is out of bounds: dimension {dim}");
                return Err((place, format!("{problem} has length {len}")));
            };
            dims.push(taken);
        }
        dims.extend(shape[dims.len()..].iter().map(|&len| Dim::whole(len)));
        Ok(Selection { dims })
    }
}

/// `count` positions from `start` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    len: usize,
    start: usize,
    count: usize,
    step: usize,
    /// A single position removes the dimension.
    is_kept: bool,
}

impl Dim {
    fn whole(len: usize) -> Self {
        Self { len, start: 0, count: len, step: 1, is_kept: true }
    }

    /// Cuts a range. Returns `None` for a position beyond the dimension.
    fn new(index: Index, len: usize) -> Option<Self> {
        let position = |position: isize| match position {
            0.. => Some(position.unsigned_abs()),
            _ => len.checked_sub(position.unsigned_abs()),
        };
        let (start, end, step) = match index {
            Index::At(at) => {
                let start = position(at).filter(|&start| start < len)?;
                return Some(Self { len, start, count: 1, step: 1, is_kept: false });
            }
            Index::Range { start, end, step } => (start, end, step),
        };
        let clip = |at| position(at).unwrap_or(0).min(len);
        let (start, end) = (start.map_or(0, clip), end.map_or(len, clip));
        let count = end.saturating_sub(start).div_ceil(step);
        Some(Self { len, start, count, step, is_kept: true })
    }

    fn index(&self) -> Index {
        match self {
            Self { start, is_kept: false, .. } => Index::from(*start),
            Self { start: 0, step: 1, count, len, .. } if count == len => Index::ALL,
            Self { start, count: 0, .. } => Index::from(*start..*start),
            Self { start, count, step, .. } => {
                Index::from(*start..start + (count - 1) * step + 1).step(*step)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    dims: Vec<Dim>,
}

impl Selection {
    /// Selects all values without a slice.
    pub(crate) fn new<S>(
        slice: Option<&Slice>,
        tensor: &LazyTensor<'_, S>,
    ) -> anyhow::Result<Self> {
        slice.map_or_else(|| Ok(Self::whole(tensor.shape())), |slice| slice.select(tensor))
    }

    fn whole(shape: &[usize]) -> Self {
        Self { dims: shape.iter().map(|&len| Dim::whole(len)).collect() }
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        self.kept().map(|dim| dim.count).collect()
    }

    pub(crate) fn len(&self) -> u128 {
        // At most 64 bits of a tensor's elements, but an empty tensor may have any dimensions.
        self.dims.iter().fold(1, |len, dim| u128::saturating_mul(len, dim.count as u128))
    }

    pub(crate) fn indices(&self) -> Vec<Index> {
        self.dims.iter().map(Dim::index).collect()
    }

    /// Takes only `count` positions of a dimension of [`shape`](Selection::shape), from `start` on.
    pub(crate) fn narrow(&self, dim: usize, start: usize, count: usize) -> Self {
        let mut narrow = self.clone();
        if let Some(dim) = narrow.dims.iter_mut().filter(|dim| dim.is_kept).nth(dim) {
            (dim.start, dim.count) = (dim.start + start * dim.step, count);
        }
        narrow
    }

    /// Maps an index in the selection, which is not empty, to one among all elements in C order.
    pub(crate) fn element(&self, index: u64) -> u64 {
        let (mut index, mut element, mut stride) = (index, 0, 1);
        for dim in self.dims.iter().rev() {
            let position = dim.start as u64 + index % dim.count as u64 * dim.step as u64;
            element += position * stride;
            index /= dim.count as u64;
            stride *= dim.len as u64;
        }
        element
    }

    /// Returns the end of the successive elements from `index` on, counted as in
    /// [`element`](Selection::element).
    pub(crate) fn run(&self, index: u64) -> u64 {
        let left = match self.dims.last() {
            Some(dim) if dim.step == 1 => dim.count as u64 - index % dim.count as u64,
            _ => 1,
        };
        self.element(index) + left
    }

    fn kept(&self) -> impl Iterator<Item = &Dim> {
        self.dims.iter().filter(|dim| dim.is_kept)
    }
}

/// A slice, and the part of it that is not read yet.
struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
}

impl Parser<'_> {
    fn slice(&mut self) -> Result<Slice, Wrong> {
        let is_bracketed = self.take("[");
        let mut parts = Vec::<(Option<Index>, TextPlace)>::new();
        loop {
            self.skip_spaces();
            let place = self.at();
            // As in Python, a comma may be at the end.
            if !parts.is_empty() && (self.rest.is_empty() || self.rest.starts_with(']')) {
                break;
            }
            let part = self.part()?;
            if part.is_none() && parts.iter().any(|(part, _)| part.is_none()) {
                return Err((place, "there may be only one `...`, found another".into()));
            }
            parts.push((part, place));
            if !self.take(",") {
                break;
            }
        }
        if is_bracketed && !self.take("]") {
            return Err(self.expected("`,` or `]`"));
        }
        self.skip_spaces();
        if !self.rest.is_empty() {
            return Err(self.expected(if is_bracketed { "nothing after `]`" } else { "`,`" }));
        }
        Ok(Slice { parts })
    }

    fn part(&mut self) -> Result<Option<Index>, Wrong> {
        if self.take("...") {
            return Ok(None);
        }
        let start = self.number()?;
        if !self.take(":") {
            return match start {
                Some(position) => Ok(Some(Index::At(position))),
                None => Err(self.expected("a position, a range such as `2:5`, or `...`")),
            };
        }
        let end = self.number()?;
        let mut step = 1;
        if self.take(":") {
            self.skip_spaces();
            let place = self.at();
            step = self.number()?.unwrap_or(1);
            if step < 1 {
                return Err((place, format!("a step should be at least 1, found {step}")));
            }
        }
        Ok(Some(Index::Range { start, end, step: step.unsigned_abs() }))
    }

    fn number(&mut self) -> Result<Option<isize>, Wrong> {
        self.skip_spaces();
        let place = self.at();
        let start = self.rest;
        let is_signed = self.take("-") || self.take("+");
        let digits = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if digits.len() == self.rest.len() {
            return if is_signed { Err(self.expected("a digit")) } else { Ok(None) };
        }
        self.rest = digits;
        let number = start[..start.len() - digits.len()].parse();
        number.map(Some).map_err(|_| (place, "a number is too large".into()))
    }

    /// Reads this text after spaces, if it is there.
    fn take(&mut self, text: &str) -> bool {
        self.skip_spaces();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn at(&self) -> TextPlace {
        self.text.chars().count() - self.rest.chars().count()
    }

    fn expected(&self, what: &str) -> Wrong {
        let found = match self.rest.chars().next() {
            Some(c) => format!("`{}`", text::printable(&c.to_string())),
            None => "the end".into(),
        };
        (self.at(), format!("expected {what}, found {found}"))
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};

    use super::*;

    /// Returns the elements in a slice of a tensor that counts up.
    fn taken(shape: &[usize], slice: &str) -> Result<(Vec<usize>, Vec<u16>), String> {
        let values: Vec<u16> = (0..shape.iter().product::<usize>() as u16).collect();
        let view = TensorView::from_slice(shape, &values).unwrap();
        let file = serialize([("w", view)], &SaveOptions::new()).unwrap();
        let file = SafeTensors::from_source(file).unwrap();
        let tensor = file.tensor("w").unwrap();
        let selection = Slice::parse(slice)?.select(&tensor).map_err(|error| error.to_string())?;
        let of_core = tensor.slice(selection.indices()).unwrap();
        let read = of_core.read().unwrap().into_vec::<u16>().unwrap();
        // The selection says the same about itself as core.
        assert_eq!(selection.shape(), of_core.shape(), "{slice}");
        assert_eq!(selection.len(), read.len() as u128, "{slice}");
        for (index, &value) in read.iter().enumerate() {
            assert_eq!(selection.element(index as u64), u64::from(value), "{slice} {index}");
        }
        Ok((of_core.shape().to_vec(), read))
    }

    #[test]
    fn slices_select_the_same_values_as_numpy() {
        // Of numpy.arange(12).reshape(3, 4).
        let cases: [(&str, &[usize], &[u16]); 19] = [
            ("[0:2, :1]", &[2, 1], &[0, 4]),
            ("0:2,:1", &[2, 1], &[0, 4]),
            (" [ 1 , -1 ] ", &[], &[7]),
            ("[-1]", &[4], &[8, 9, 10, 11]),
            ("-2:", &[2, 4], &[4, 5, 6, 7, 8, 9, 10, 11]),
            ("...", &[3, 4], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            ("[..., 2]", &[3], &[2, 6, 10]),
            ("[2, ...]", &[4], &[8, 9, 10, 11]),
            ("[1, ..., 2]", &[], &[6]),
            ("[0, 0, ...]", &[], &[0]),
            ("[:, ::2]", &[3, 2], &[0, 2, 4, 6, 8, 10]),
            ("[::2, 1::2]", &[2, 2], &[1, 3, 9, 11]),
            ("[::100, 0]", &[1], &[0]),
            ("[:100, 3]", &[3], &[3, 7, 11]),
            ("[-100:1, 3]", &[1], &[3]),
            ("[2:1]", &[0, 4], &[]),
            ("[50:60, 0]", &[0], &[]),
            ("[1,]", &[4], &[4, 5, 6, 7]),
            ("[:-2, +1:3:]", &[1, 2], &[1, 2]),
        ];
        for (slice, shape, values) in cases {
            assert_eq!(taken(&[3, 4], slice), Ok((shape.to_vec(), values.to_vec())), "{slice}");
        }
        assert_eq!(taken(&[], "[...]"), Ok((vec![], vec![0])));
        assert_eq!(taken(&[2, 0], "[1, :]"), Ok((vec![0], vec![])));
    }

    #[test]
    fn errors_show_the_place() {
        let wrong = [
            ("", "expected a position, a range such as `2:5`, or `...`, found the end", 1),
            ("[]", "expected a position, a range such as `2:5`, or `...`, found `]`", 2),
            ("[0, x]", "expected a position, a range such as `2:5`, or `...`, found `x`", 5),
            ("[0 1]", "expected `,` or `]`, found `1`", 4),
            ("0 1", "expected `,`, found `1`", 3),
            ("[0:3", "expected `,` or `]`, found the end", 5),
            ("[0][1]", "expected nothing after `]`, found `[`", 4),
            ("[0]]", "expected nothing after `]`, found `]`", 4),
            ("[:, ::0]", "a step should be at least 1, found 0", 7),
            ("[::-1]", "a step should be at least 1, found -1", 4),
            ("[..., ...]", "there may be only one `...`, found another", 7),
            ("[1.5]", "expected `,` or `]`, found `.`", 3),
            ("[-]", "expected a digit, found `]`", 3),
            ("[,]", "expected a position, a range such as `2:5`, or `...`, found `,`", 2),
            ("[0, 99999999999999999999]", "a number is too large", 5),
            ("[None]", "expected a position, a range such as `2:5`, or `...`, found `N`", 2),
        ];
        for (slice, problem, place) in wrong {
            let error = Slice::parse(slice).unwrap_err();
            let mark = format!("\n\n    {slice}\n    {}^", " ".repeat(place - 1));
            assert_eq!(error, format!("{problem} at character {place}{mark}"));
        }
        // There is no mark if it could be in the wrong column.
        let error = Slice::parse("[层\u{1b}").unwrap_err();
        assert!(error.ends_with("found `层` at character 2"), "{error}");
        let wrong = [
            ("[0:3, 4]", "character 7: position 4 is out of bounds: dimension 1 has length 4"),
            ("[-4]", "character 2: position -4 is out of bounds: dimension 0 has length 3"),
            ("0, 0, :", "character 7: the tensor has only 2 dimensions"),
            ("[..., 0, 0, 0]", "character 13: the tensor has only 2 dimensions"),
        ];
        for (slice, problem) in wrong {
            let error = taken(&[3, 4], slice).unwrap_err();
            assert_eq!(error, format!("tensor \"w\": slice, {problem}"));
        }
    }

    #[test]
    fn an_empty_tensor_may_have_huge_dimensions() {
        let all = Selection::whole(&[usize::MAX, usize::MAX, usize::MAX, 0]);
        assert_eq!((all.len(), all.shape().len()), (0, 4));
        assert_eq!(all.narrow(0, 5, 1).shape(), [1, usize::MAX, usize::MAX, 0]);
    }
}
