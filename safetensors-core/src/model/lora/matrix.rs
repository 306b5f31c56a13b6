//! [`Matrix`]: the matrices of a module by their positions in an adapter, and their shapes.

use std::collections::BTreeMap;
use std::io;

use super::kinds::{Family, Kind, Role};
use super::product::{Factors, Join, Product, contracted, transposed};
use super::source::{Source, checked, located, mismatch, read_all};
use crate::checkpoint::failed;
use crate::file::load::LazyTensor;
use crate::format::error::{AdapterProblem, Error, Result, Shape};

/// A matrix that is computed from tensors of an adapter. These are positions.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    Stored(usize),
    Product(Pair),
    Two(Join, Box<[Matrix; 2]>),
}

/// The two factors of a product, and perhaps the core between them of a Tucker decomposition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) up: usize,
    pub(super) down: usize,
    mid: Option<usize>,
    form: Form,
}

/// How the factors are stored. The number is the length of their common dimension.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// `[rows, rank]` and `[rank, columns]`.
    Plain,
    /// `[rank, rows]` and `[rank, columns]`.
    FirstTurned,
    /// `[rank, rows]` and `[columns, rank]`.
    BothTurned,
    /// A stack: `[n, rows, rank]` and `[n, rank, columns]`.
    Stack,
    /// A stack by PEFT: `[rows, rank · n]` and `[n · rank, columns]`.
    Experts(usize),
}

/// The shape of a product: the rows, and the dimensions of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProductShape {
    pub(super) rows: usize,
    pub(super) row: Vec<usize>,
    /// The number of products in a stack.
    pub(super) stack: Option<usize>,
    /// `None` if no matrix of the module shows it.
    pub(super) rank: Option<usize>,
}

impl ProductShape {
    pub(super) fn columns(&self) -> usize {
        self.row.iter().fold(1, |all, &dim| all.saturating_mul(dim))
    }

    /// Returns all dimensions.
    pub(super) fn dims(&self) -> Vec<usize> {
        [self.stack.as_slice(), &[self.rows], &self.row].concat()
    }
}

impl Matrix {
    /// Makes the matrix of a module of which each needed tensor is found by `need`. `None` for a
    /// module with nothing but a bias.
    pub(super) fn new(
        (kind, family): (Kind, Family),
        source: &Source,
        found: &BTreeMap<Role, usize>,
        need: impl Fn(Role) -> Result<usize>,
    ) -> Result<Option<Self>> {
        let get = |role| found.get(&role).copied();
        let pair = |[up, down, mid]: [Role; 3], form| {
            Ok::<_, Error>(Pair { up: need(up)?, down: need(down)?, mid: get(mid), form })
        };
        let factor = |full, roles: [Role; 3]| match (get(full), roles.into_iter().find_map(get)) {
            (Some(_), Some(part)) => {
                let found = "a factor of a matrix that it also has whole".to_owned();
                let tensor = checked(source, part, 1)?;
                Err(located(&tensor, AdapterProblem::Unsupported { found }))
            }
            (Some(full), None) => Ok(Self::Stored(full)),
            _ if get(roles[2]).is_some() => Ok(Self::Product(pair(roles, Form::FirstTurned)?)),
            _ => Ok(Self::Product(pair(roles, Form::Plain)?)),
        };
        Ok(Some(match kind {
            Kind::Lora => {
                let form = match (family, source.tensor_at(need(Role::Up)?)) {
                    (Family::Mlx, Some(up)) if up.shape().len() == 3 => Form::Stack,
                    (Family::Mlx, _) => Form::BothTurned,
                    _ => Form::Plain,
                };
                Self::Product(pair([Role::Up, Role::Down, Role::Mid], form)?)
            }
            Kind::Loha | Kind::Lokr => {
                let join = if kind == Kind::Loha { Join::Hadamard } else { Join::Kronecker };
                let one = factor(Role::W1, [Role::W1A, Role::W1B, Role::T1])?;
                let other = factor(Role::W2, [Role::W2A, Role::W2B, Role::T2])?;
                Self::Two(join, Box::new([one, other]))
            }
            Kind::Full => match get(Role::Diff) {
                Some(diff) => Self::Stored(diff),
                None => return Ok(None),
            },
        }))
    }

    /// Returns the same product as a stack of products for `experts`, as PEFT stores it.
    pub(super) fn of_experts(&self, experts: usize) -> Self {
        match self {
            Self::Product(pair) => Self::Product(Pair { form: Form::Experts(experts), ..*pair }),
            other => other.clone(),
        }
    }

    /// Returns the positions of the tensors that show the rows and the rank.
    pub(super) fn ends(&self) -> [usize; 2] {
        match self {
            Self::Stored(position) => [*position; 2],
            Self::Product(pair) => [pair.up, pair.down],
            Self::Two(_, both) => both[1].ends(),
        }
    }

    /// Checks that the tensors fit each other, and returns the shape of the result.
    pub(super) fn shape(&self, source: &Source) -> Result<ProductShape> {
        match self {
            Self::Stored(position) => {
                let tensor = checked(source, *position, 1)?;
                let (rows, row) = (tensor.shape()[0], tensor.shape()[1..].to_vec());
                Ok(ProductShape { rows, row, stack: None, rank: None })
            }
            Self::Product(pair) => pair.shape(source),
            Self::Two(join, both) => {
                let [one, other] = both.each_ref().map(|matrix| matrix.shape(source));
                let (one, mut other) = (one?, other?);
                if let (Some(rank), Some(found)) = (one.rank, other.rank)
                    && rank != found
                {
                    let tensor = checked(source, both[1].ends()[1], 2)?;
                    let [expected, found] = [rank, found].map(|it| format!("a rank of {it}"));
                    return Err(located(&tensor, mismatch(expected, found)));
                }
                if *join == Join::Kronecker {
                    other.rows = other.rows.saturating_mul(one.rows);
                    if let Some(inputs) = other.row.first_mut() {
                        *inputs = inputs.saturating_mul(one.columns());
                    }
                    other.rank = other.rank.or(one.rank);
                } else if one.dims() != other.dims() {
                    let expected = format!("a product of shape {}", Shape(&one.dims()));
                    let found = format!("shape {}", Shape(&other.dims()));
                    let tensor = checked(source, both[1].ends()[0], 2)?;
                    return Err(located(&tensor, mismatch(expected, found)));
                }
                Ok(other)
            }
        }
    }

    /// Reads the tensors. A product may be transposed.
    pub(super) fn read(&self, source: &Source, is_transposed: bool) -> io::Result<Factors> {
        match self {
            Self::Stored(position) => {
                let rows = source.tensor_at(*position).map_or(1, |it| it.shape()[0]).max(1);
                let values = read_all(source, *position)?;
                Ok(Factors::Full { columns: values.len() / rows, values })
            }
            Self::Product(pair) => pair.read(source, is_transposed).map(Factors::Product),
            Self::Two(join, both) => {
                let [one, other] = both.each_ref().map(|matrix| matrix.read(source, false));
                Ok(Factors::Two(*join, Box::new([one?, other?])))
            }
        }
    }
}

impl Pair {
    fn shape(&self, source: &Source) -> Result<ProductShape> {
        let (down, up) = (checked(source, self.down, 2)?, checked(source, self.up, 2)?);
        let (rows, rank, inner, row, stack) = match (self.form, up.shape(), down.shape()) {
            (Form::Stack, [n, rows, rank], [m, inner, row]) if n == m => {
                (rows, rank, inner, vec![*row], Some(*n))
            }
            (Form::BothTurned, [rank, rows], [row, inner]) => (rows, rank, inner, vec![*row], None),
            (Form::FirstTurned, [rank, rows], [inner, row]) => {
                (rows, rank, inner, vec![*row], None)
            }
            (Form::Plain, [rows, rank, ones @ ..], [inner, row @ ..])
                if ones.len() < row.len() && is_ones(ones) =>
            {
                (rows, rank, inner, row.to_vec(), None)
            }
            (Form::Experts(n), [rows, rank], [inner, row]) if n > 0 && inner.is_multiple_of(n) => {
                (rows, rank, inner, vec![*row], Some(n))
            }
            _ => return Err(self.unfit(&up, down.shape())),
        };
        if rank != inner {
            return Err(self.unfit(&up, down.shape()));
        }
        let rank = match self.form {
            Form::Experts(n) => rank / n,
            _ => *rank,
        };
        let mut shape = ProductShape { rows: *rows, row, stack, rank: Some(rank) };
        if let Some(mid) = self.mid {
            let mid = checked(source, mid, 3)?;
            let ones = shape.row.split_off(1);
            if mid.shape()[..2] != [rank, rank] || !is_ones(&ones) {
                let expected = format!("shape [{rank}, {rank}] and the sizes of a kernel");
                let found = format!("shape {}", Shape(mid.shape()));
                return Err(located(&mid, mismatch(expected, found)));
            }
            shape.row.extend(&mid.shape()[2..]);
        }
        Ok(shape)
    }

    /// Returns the error about the shape of the first factor.
    fn unfit<S>(&self, up: &LazyTensor<'_, S>, down: &[usize]) -> Error {
        let expected = match self.form {
            Form::Plain => {
                let mut expected = vec![1; down.len()];
                (expected[0], expected[1]) = (up.shape()[0], down[0]);
                format!("shape {}, without groups of channels", Shape(&expected))
            }
            _ => format!("a matrix that is multiplied with one of shape {}", Shape(down)),
        };
        located(up, mismatch(expected, format!("shape {}", Shape(up.shape()))))
    }

    fn read(&self, source: &Source, is_transposed: bool) -> io::Result<Product> {
        let shape = self.shape(source).map_err(failed)?;
        let rank = shape.rank.unwrap_or(1);
        let mut up = read_all(source, self.up)?;
        let mut down = read_all(source, self.down)?;
        match self.form {
            Form::Plain | Form::Stack => {}
            Form::FirstTurned => up = transposed(&up, shape.rows),
            Form::BothTurned => {
                up = transposed(&up, shape.rows);
                down = transposed(&down, rank);
            }
            // `[rows, rank, n]` becomes `[n, rows, rank]`.
            Form::Experts(n) => up = transposed(&up, n),
        }
        if let Some(mid) = self.mid {
            down = contracted(&read_all(source, mid)?, &down, rank);
        }
        let product = Product::new(up, down, rank, shape.stack.unwrap_or(1));
        Ok(if is_transposed { product.transposed() } else { product })
    }
}

fn is_ones(dims: &[usize]) -> bool {
    dims.iter().all(|&dim| dim == 1)
}
