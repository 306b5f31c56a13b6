//! [`Weight`]: what the tensors that store a quantised weight say of each of its elements.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use super::matrix::{Files, Matrix, Stored};

/// The most elements that are decoded at once, so that they stay in a processor's cache.
const MOST: usize = 1 << 18;

/// A quantised weight: its elements in C order are those of a matrix of codes, row by row.
#[derive(Debug)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) scheme: &'static str,
    /// The shape of the weight to its user.
    pub(super) shape: Vec<usize>,
    /// All tensors that store the weight; the codes come first.
    pub(super) tensors: Vec<Stored>,
    pub(super) numbers: Grouped,
}

/// A matrix of codes with numbers for groups of them.
#[derive(Debug)]
pub(super) struct Grouped {
    pub(super) codes: Matrix,
    pub(super) columns: usize,
    pub(super) formula: Formula,
    pub(super) scales: Option<Scales>,
    pub(super) zeros: Option<Grid>,
    /// Factors of the columns, applied last.
    pub(super) of_columns: Option<Grid>,
}

/// How a code, a scale and a zero point make an element. Each operation is rounded to F32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Formula {
    /// (code − zero) · scale
    Subtract,
    /// code · scale + zero
    Add,
    /// code · scale − zero
    Shift,
    /// code · scale + a constant
    AddConstant(f32),
    /// code · scale · a constant
    Times(f32),
}

/// The scales of a weight: one for each group of elements, perhaps combined with a second one.
#[derive(Debug)]
pub(super) struct Scales {
    pub(super) first: Grid,
    pub(super) second: Option<(Combine, Grid)>,
}

impl From<Grid> for Scales {
    fn from(first: Grid) -> Self {
        Self { first, second: None }
    }
}

/// What a scale does with the scale of all its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    Multiply,
    Divide,
}

/// Numbers of groups of elements.
#[derive(Debug)]
pub(super) struct Grid {
    numbers: Numbers,
    rows: RowGroups,
    columns: ColumnGroups,
}

#[derive(Debug)]
enum Numbers {
    Matrix(Matrix),
    /// The numbers are quantised themselves.
    Grouped(Box<Grouped>),
}

/// The rows that share a number: `size` neighbours of the `len` rows of each matrix, which has
/// `count` rows of numbers.
#[derive(Clone, Copy, Debug)]
struct RowGroups {
    len: usize,
    size: usize,
    count: usize,
}

/// The columns that share a number.
#[derive(Debug)]
enum ColumnGroups {
    /// This many neighbours.
    Size(usize),
    /// Those with the same entry in a tensor of groups, each below the limit.
    Indexed { tensor: Stored, limit: usize, groups: OnceLock<Vec<usize>> },
}

impl Grid {
    /// Numbers for groups of `size` rows and columns. `rows` is the number of rows of each matrix,
    /// and `count` how many rows of numbers it has.
    pub(super) fn new(matrix: Matrix, rows: usize, count: usize, size: [usize; 2]) -> Self {
        let rows = RowGroups { len: rows.max(1), size: size[0].max(1), count };
        Self { numbers: Numbers::Matrix(matrix), rows, columns: ColumnGroups::Size(size[1].max(1)) }
    }

    /// Numbers that are quantised themselves, one for each `size` columns of the only row.
    pub(super) fn quantized(numbers: Grouped, size: usize) -> Self {
        let rows = RowGroups { len: 1, size: 1, count: 1 };
        let numbers = Numbers::Grouped(Box::new(numbers));
        Self { numbers, rows, columns: ColumnGroups::Size(size.max(1)) }
    }

    /// The same numbers for the columns that a tensor puts into each of `limit` groups.
    pub(super) fn indexed(mut self, tensor: &Stored, limit: usize) -> Self {
        let (tensor, groups) = (tensor.clone(), OnceLock::new());
        self.columns = ColumnGroups::Indexed { tensor, limit, groups };
        self
    }

    /// The numbers of all groups that have elements in a part.
    fn read(&self, files: &dyn Files, part: &Part) -> io::Result<Numbered<'_>> {
        let rows = self.row(part.rows.start)..self.row(part.rows.end - 1) + 1;
        let (columns, groups) = match &self.columns {
            ColumnGroups::Size(size) => {
                let columns = part.columns.start / size..(part.columns.end - 1) / size + 1;
                (columns, None)
            }
            ColumnGroups::Indexed { tensor, limit, groups } => {
                let groups = match groups.get() {
                    Some(groups) => groups,
                    None => {
                        let found = read_groups(files, tensor, *limit)?;
                        groups.get_or_init(|| found)
                    }
                };
                (0..*limit, Some(&groups[..]))
            }
        };
        let mut values = vec![0.0; rows.len() * columns.len()];
        match &self.numbers {
            Numbers::Matrix(matrix) => {
                matrix.read(files, rows.clone(), columns.clone(), &mut values)?;
            }
            Numbers::Grouped(numbers) => {
                numbers.read(files, columns.start as u64, &mut values)?;
            }
        }
        Ok(Numbered { grid: self, values, rows, columns, groups })
    }

    /// The row of numbers that a row of the weight belongs to.
    fn row(&self, row: usize) -> usize {
        let RowGroups { len, size, count } = self.rows;
        row / len * count + row % len / size
    }
}

/// The group of each column.
fn read_groups(files: &dyn Files, tensor: &Stored, limit: usize) -> io::Result<Vec<usize>> {
    let bytes = tensor.read(files)?;
    let groups = bytes.as_chunks::<4>().0.iter().map(|bytes| {
        let group = i32::from_le_bytes(*bytes);
        usize::try_from(group).ok().filter(|group| *group < limit).ok_or_else(|| {
            let problem = format!(
                "tensor {}: expected groups from 0 to {}, found {group}",
                crate::error::Quoted(&tensor.name),
                limit.saturating_sub(1)
            );
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })
    });
    groups.collect()
}

/// A part of a matrix.
struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The numbers of the groups of a part.
struct Numbered<'a> {
    grid: &'a Grid,
    values: Vec<f32>,
    /// The rows and columns of the grid that `values` has.
    rows: Range<usize>,
    columns: Range<usize>,
    /// The group of each column, if groups are not neighbours.
    groups: Option<&'a [usize]>,
}

impl Numbered<'_> {
    /// The numbers that belong to a row of the weight.
    fn row(&self, row: usize) -> &[f32] {
        let width = self.columns.len();
        let start = (self.grid.row(row) - self.rows.start) * width;
        &self.values[start..start + width]
    }

    /// How many columns from this one on have the same number, and where that is in a row.
    fn run(&self, column: usize) -> (usize, usize) {
        match (&self.grid.columns, self.groups) {
            (_, Some(groups)) => (1, groups[column]),
            (ColumnGroups::Size(size), None) => {
                (size - column % size, column / size - self.columns.start)
            }
            (ColumnGroups::Indexed { .. }, None) => (1, 0),
        }
    }
}

impl Grouped {
    /// Codes that stand for the elements themselves.
    pub(super) fn new(codes: Matrix, columns: usize) -> Self {
        let formula = Formula::Subtract;
        Self { codes, columns, formula, scales: None, zeros: None, of_columns: None }
    }

    /// The same with scales.
    pub(super) fn scaled(mut self, scales: impl Into<Scales>) -> Self {
        self.scales = Some(scales.into());
        self
    }

    /// The same with zero points.
    pub(super) fn zeroed(mut self, zeros: Option<Grid>) -> Self {
        self.zeros = zeros;
        self
    }

    /// Reads the elements from `first` on, in C order.
    pub(super) fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        let (mut first, mut out) = (first, out);
        while !out.is_empty() {
            let row = (first / self.columns as u64) as usize;
            let column = (first % self.columns as u64) as usize;
            let (rows, columns) = if column > 0 || out.len() < self.columns || self.columns > MOST {
                let count = (self.columns - column).min(out.len()).min(MOST);
                (row..row + 1, column..column + count)
            } else {
                let count = (out.len() / self.columns).min(MOST / self.columns);
                (row..row + count, 0..self.columns)
            };
            let (these, rest) = out.split_at_mut(rows.len() * columns.len());
            first += these.len() as u64;
            self.read_part(files, &Part { rows, columns }, these)?;
            out = rest;
        }
        Ok(())
    }

    fn read_part(&self, files: &dyn Files, part: &Part, out: &mut [f32]) -> io::Result<()> {
        self.codes.read(files, part.rows.clone(), part.columns.clone(), out)?;
        let scales = self.scales.as_ref().map(|scales| scales.read(files, part)).transpose()?;
        let zeros = self.zeros.as_ref().map(|zeros| zeros.read(files, part)).transpose()?;
        let factors = self.of_columns.as_ref().map(|grid| grid.read(files, part)).transpose()?;
        for (row, out) in part.rows.clone().zip(out.chunks_exact_mut(part.columns.len())) {
            if scales.is_some() || zeros.is_some() {
                self.apply(scales.as_ref(), zeros.as_ref(), row, part.columns.start, out);
            }
            if let Some(factors) = &factors {
                let factors = factors.row(row).iter();
                out.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
            }
        }
        Ok(())
    }

    /// Applies the numbers of the groups to the codes of a row, from this column on.
    fn apply(
        &self,
        scales: Option<&Numbered<'_>>,
        zeros: Option<&Numbered<'_>>,
        row: usize,
        start: usize,
        out: &mut [f32],
    ) {
        let scales = scales.map(|numbers| (numbers, numbers.row(row)));
        let zeros = zeros.map(|numbers| (numbers, numbers.row(row)));
        let mut at = 0;
        while at < out.len() {
            let mut len = out.len() - at;
            let mut number = |numbers: Option<(&Numbered<'_>, &[f32])>, none| {
                let Some((numbers, values)) = numbers else { return none };
                let (run, place) = numbers.run(start + at);
                len = len.min(run);
                values[place]
            };
            let (scale, zero) = (number(scales, 1.0), number(zeros, 0.0));
            self.formula.apply(scale, zero, &mut out[at..at + len]);
            at += len;
        }
    }
}

impl Scales {
    /// The scales of all groups of a part.
    fn read(&self, files: &dyn Files, part: &Part) -> io::Result<Numbered<'_>> {
        let mut scales = self.first.read(files, part)?;
        let Some((combine, second)) = &self.second else { return Ok(scales) };
        // A second scale belongs to a whole matrix, of which the first column will do.
        let part = Part { rows: part.rows.clone(), columns: 0..1 };
        let others = second.read(files, &part)?;
        let width = scales.columns.len().max(1);
        let mut seen = scales.rows.start;
        for row in part.rows {
            let of = self.first.row(row);
            // Rows that share their scales share the second one, too.
            if of < seen {
                continue;
            }
            seen = of + 1;
            let other = others.row(row)[0];
            let start = (of - scales.rows.start) * width;
            for scale in &mut scales.values[start..start + width] {
                match combine {
                    Combine::Multiply => *scale *= other,
                    Combine::Divide => *scale /= other,
                }
            }
        }
        Ok(scales)
    }
}

impl Formula {
    fn apply(self, scale: f32, zero: f32, out: &mut [f32]) {
        match self {
            // The codes have no negative zero to lose if there is no zero point.
            Self::Subtract if zero == 0.0 => out.iter_mut().for_each(|x| *x *= scale),
            Self::Subtract => out.iter_mut().for_each(|x| *x = (*x - zero) * scale),
            Self::Add => out.iter_mut().for_each(|x| *x = *x * scale + zero),
            Self::Shift => out.iter_mut().for_each(|x| *x = *x * scale - zero),
            Self::AddConstant(constant) => out.iter_mut().for_each(|x| *x = *x * scale + constant),
            Self::Times(constant) => out.iter_mut().for_each(|x| *x = *x * scale * constant),
        }
    }
}
