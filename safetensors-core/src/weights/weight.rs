//! [`Grouped`]: the code, scale and zero point of each element.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

pub(super) use super::groups::Formula;
use super::groups::Groups;
use super::matrix::{Files, Matrix, Raw, Stored};

#[derive(Debug)]
pub(super) struct Grouped {
    pub(super) codes: Matrix,
    pub(super) columns: usize,
    pub(super) formula: Formula,
    pub(super) scales: Option<Scales>,
    pub(super) zeros: Option<Grid>,
    /// Factors, applied last.
    pub(super) of_columns: Option<Grid>,
}

/// One for each group of elements, perhaps combined with a second one.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    Multiply,
    Divide,
}

#[derive(Debug)]
pub(super) struct Grid {
    numbers: Numbers,
    rows: RowGroups,
    columns: ColumnGroups,
}

#[derive(Debug)]
enum Numbers {
    Matrix(Matrix),
    Grouped(Box<Grouped>),
}

/// `size` neighbours of the `len` rows of each matrix share a number; `count` rows of numbers.
#[derive(Clone, Copy, Debug)]
struct RowGroups {
    len: usize,
    size: usize,
    count: usize,
}

#[derive(Debug)]
enum ColumnGroups {
    Known(Groups),
    /// Columns with the same entry in a tensor of groups.
    Indexed {
        tensor: Stored,
        limit: usize,
        /// The neighbours that are a group if each entry is -1.
        size: Option<usize>,
        groups: OnceLock<Groups>,
    },
}

impl Grid {
    /// Groups of `size` rows and columns. Each matrix has `rows` rows, and `count` rows of numbers.
    pub(super) fn new(matrix: Matrix, rows: usize, count: usize, size: [usize; 2]) -> Self {
        let rows = RowGroups { len: rows.max(1), size: size[0].max(1), count };
        let numbers = Numbers::Matrix(matrix);
        Self { numbers, rows, columns: ColumnGroups::Known(Groups::Neighbours(size[1].max(1))) }
    }

    pub(super) fn quantized(numbers: Grouped, size: usize) -> Self {
        let rows = RowGroups { len: 1, size: 1, count: 1 };
        let numbers = Numbers::Grouped(Box::new(numbers));
        Self { numbers, rows, columns: ColumnGroups::Known(Groups::Neighbours(size.max(1))) }
    }

    /// Assigns columns to groups by a tensor, below `limit`. With `or_not`, neighbours are groups
    /// if each entry is -1.
    pub(super) fn indexed(mut self, tensor: &Stored, limit: usize, or_not: bool) -> Self {
        let size = match self.columns {
            ColumnGroups::Known(Groups::Neighbours(size)) if or_not => Some(size),
            _ => None,
        };
        let tensor = tensor.clone();
        let groups = OnceLock::new();
        self.columns = ColumnGroups::Indexed { tensor, limit, size, groups };
        self
    }

    fn scatters_rows(&self) -> bool {
        match &self.numbers {
            Numbers::Matrix(matrix) => matrix.scatters_rows(),
            Numbers::Grouped(grouped) => grouped.scatters_rows(),
        }
    }

    /// Returns how many neighbouring rows and columns share a number. 0 columns if no such number
    /// is known.
    fn sizes(&self) -> [usize; 2] {
        let columns = match self.columns {
            ColumnGroups::Known(Groups::Neighbours(size)) => size,
            _ => 0,
        };
        [self.rows.size, columns]
    }

    fn read(&self, files: &dyn Files, part: &Part) -> io::Result<Numbered> {
        let rows = self.row(part.rows.start)..self.row(part.rows.end - 1) + 1;
        let columns = match (self.groups(files)?, &self.columns) {
            (Groups::Each(_), ColumnGroups::Indexed { limit, .. }) => 0..*limit,
            (groups, _) => groups.index(part.columns.start)..groups.index(part.columns.end - 1) + 1,
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
        Ok(Numbered { values, rows, columns })
    }

    fn groups(&self, files: &dyn Files) -> io::Result<&Groups> {
        match &self.columns {
            ColumnGroups::Known(groups) => Ok(groups),
            ColumnGroups::Indexed { tensor, limit, size, groups } => match groups.get() {
                Some(groups) => Ok(groups),
                None => {
                    let found = read_groups(files, tensor, *limit, *size)?;
                    Ok(groups.get_or_init(|| found))
                }
            },
        }
    }

    fn known_groups(&self) -> Option<&Groups> {
        match &self.columns {
            ColumnGroups::Known(groups) => Some(groups),
            ColumnGroups::Indexed { groups, .. } => groups.get(),
        }
    }

    fn of_row<'a>(&self, numbers: &'a Numbered, row: usize) -> &'a [f32] {
        let width = numbers.columns.len();
        &numbers.values[(self.row(row) - numbers.rows.start) * width..][..width]
    }

    /// Returns how many neighbours share a number, and the numbers of a row from `start` on.
    fn neighbours<'a>(
        &self,
        numbers: &'a Numbered,
        row: usize,
        start: usize,
    ) -> Option<(usize, &'a [f32])> {
        let Some(Groups::Neighbours(size)) = self.known_groups() else { return None };
        Some((*size, &self.of_row(numbers, row)[start / size - numbers.columns.start..]))
    }

    fn expand(&self, numbers: &Numbered, row: usize, start: usize, out: &mut [f32]) {
        if let Some(groups) = self.known_groups() {
            groups.expand(self.of_row(numbers, row), numbers.columns.start, start, out);
        }
    }

    fn row(&self, row: usize) -> usize {
        let RowGroups { len, size, count } = self.rows;
        row / len * count + row % len / size
    }
}

/// Makes groups of `size` neighbours if each entry is -1.
fn read_groups(
    files: &dyn Files,
    tensor: &Stored,
    limit: usize,
    size: Option<usize>,
) -> io::Result<Groups> {
    let bytes = tensor.read(files)?;
    if let Some(size) = size.filter(|_| bytes.iter().all(|byte| *byte == 0xff)) {
        return Ok(Groups::Neighbours(size));
    }
    let groups = bytes.as_chunks::<4>().0.iter().map(|bytes| {
        let group = i32::from_le_bytes(*bytes);
        usize::try_from(group).ok().filter(|group| *group < limit).ok_or_else(|| {
            let problem = format!(
                "tensor {}: expected groups from 0 to {}, found {group}",
                crate::format::error::Quoted(&tensor.name),
                limit.saturating_sub(1)
            );
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })
    });
    Ok(Groups::each(groups.collect::<io::Result<_>>()?))
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

#[derive(Debug)]
struct Numbered {
    values: Vec<f32>,
    rows: Range<usize>,
    columns: Range<usize>,
}

#[derive(Debug)]
pub(super) struct Grids {
    scales: Option<Numbered>,
    zeros: Option<Numbered>,
    factors: Option<Numbered>,
}

pub(super) struct Row {
    scales: [f32; Row::LEN],
    zeros: [f32; Row::LEN],
    factors: [f32; Row::LEN],
}

impl Row {
    // As many columns stay in the nearest cache.
    pub(super) const LEN: usize = if cfg!(test) { 40 } else { 2048 };

    /// Sets scales to 1 and zero points to 0.
    pub(super) fn new() -> Self {
        let ones = [1.0; Self::LEN];
        Self { scales: ones, zeros: [0.0; Self::LEN], factors: ones }
    }
}

impl Grouped {
    /// Returns how many neighbouring rows and columns share a scale.
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.scales.as_ref().map_or([0, 0], |scales| scales.first.sizes())
    }

    /// Whether neighbouring rows are apart in a tensor, in planes or tiles.
    pub(super) fn scatters_rows(&self) -> bool {
        let scales = self.scales.iter().map(|scales| &scales.first);
        self.codes.scatters_rows() || scales.chain(&self.zeros).any(Grid::scatters_rows)
    }

    pub(super) fn new(codes: Matrix, columns: usize) -> Self {
        let formula = Formula::Subtract;
        Self { codes, columns, formula, scales: None, zeros: None, of_columns: None }
    }

    pub(super) fn plain(tensor: &Stored) -> Self {
        let [_, columns] = tensor.matrix();
        Self::new(Matrix::rows(tensor, tensor.dtype, columns), columns)
    }

    pub(super) fn scaled(mut self, scales: impl Into<Scales>) -> Self {
        self.scales = Some(scales.into());
        self
    }

    pub(super) fn zeroed(mut self, zeros: Option<Grid>) -> Self {
        self.zeros = zeros;
        self
    }

    pub(super) fn fetch_grids(&self, files: &dyn Files, part: &Part) -> io::Result<Grids> {
        Ok(Grids {
            scales: self.scales.as_ref().map(|scales| scales.read(files, part)).transpose()?,
            zeros: self.zeros.as_ref().map(|zeros| zeros.read(files, part)).transpose()?,
            factors: self.of_columns.as_ref().map(|grid| grid.read(files, part)).transpose()?,
        })
    }

    /// Computes at most [`Row::LEN`] elements from `start` on.
    pub(super) fn compute<'a>(
        &self,
        (raw, grids): (&Raw, &'a Grids),
        (row, start): (usize, usize),
        memory: &mut Row,
        out: &mut [f32],
    ) {
        let len = out.len();
        self.codes.decode(raw, row, start..start + len, out);
        let Row { scales, zeros, factors } = memory;
        let by_scales = self.scales.as_ref().zip(grids.scales.as_ref());
        let by_scales = by_scales.map(|(scales, numbers)| (&scales.first, numbers));
        let by_zeros = self.zeros.as_ref().zip(grids.zeros.as_ref());
        let shared = |(grid, numbers): (&Grid, &'a Numbered)| grid.neighbours(numbers, row, start);
        match (by_scales.and_then(shared), by_zeros.and_then(shared)) {
            (Some((size, scales)), Some((other, zeros))) if size == other && size >= 16 => {
                self.formula.apply_to_groups((size, start % size), scales, zeros, out);
            }
            _ => {
                if let Some((grid, numbers)) = by_scales {
                    grid.expand(numbers, row, start, &mut scales[..len]);
                }
                if let Some((grid, numbers)) = by_zeros {
                    grid.expand(numbers, row, start, &mut zeros[..len]);
                }
                if by_scales.or(by_zeros).is_some() {
                    self.formula.apply(scales, zeros, out);
                }
            }
        }
        if let Some((grid, numbers)) = self.of_columns.as_ref().zip(grids.factors.as_ref()) {
            grid.expand(numbers, row, start, &mut factors[..len]);
            out.iter_mut().zip(&factors[..]).for_each(|(value, factor)| *value *= factor);
        }
    }
}

impl Scales {
    fn read(&self, files: &dyn Files, part: &Part) -> io::Result<Numbered> {
        let mut scales = self.first.read(files, part)?;
        let Some((combine, second)) = &self.second else { return Ok(scales) };
        // A second scale belongs to an entire matrix, so its first column will do.
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
            let other = others.values[second.row(row) - others.rows.start];
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
