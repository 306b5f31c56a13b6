//! [`Matrix`]: the matrices of a module by their positions in an adapter, and their shapes.

use std::io;

use super::kinds::{Kind, Role, Tensors};
use super::product::{Factors, Join, Product, contracted, transposed};
use super::source::{Source, at, checked, mismatch, misshapen, read_all};
use crate::checkpoint::failed;
use crate::format::error::{AdapterProblem, Result, Shape};

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
    up: Factor,
    down: Factor,
    mid: Option<usize>,
    form: Form,
}

/// A matrix of two dimensions may be stored transposed.
#[derive(Clone, Copy, Debug)]
struct Factor {
    position: usize,
    is_turned: bool,
}

/// How the factors are stored.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// `[rows, rank]` and `[rank, columns]`.
    Single,
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
        len(&self.row)
    }

    /// Returns all dimensions.
    pub(super) fn dims(&self) -> Vec<usize> {
        [self.stack.as_slice(), &[self.rows], &self.row].concat()
    }
}

impl Matrix {
    /// Makes the matrix of a module. `None` for a module with nothing but a bias.
    pub(super) fn new(tensors: &Tensors<'_>, kind: Kind) -> Result<Option<Self>> {
        let join = match kind {
            Kind::Full => return Ok(tensors.get(Role::Diff).map(Self::Stored)),
            Kind::Loha => Join::Hadamard,
            Kind::Lokr => Join::Kronecker,
            _ => {
                let roles = [Role::Up, Role::Down, Role::Mid];
                let mut pair = Pair::new(tensors, roles, [kind.is_turned(Role::Up); 2])?;
                let up = tensors.source.tensor_at(pair.up.position);
                if kind == Kind::Mlx && up.is_some_and(|up| up.shape().len() == 3) {
                    pair.form = Form::Stack;
                }
                return Ok(Some(Self::Product(pair)));
            }
        };
        let one = Self::factor(tensors, Role::W1, [Role::W1A, Role::W1B, Role::T1])?;
        let other = Self::factor(tensors, Role::W2, [Role::W2A, Role::W2B, Role::T2])?;
        Ok(Some(Self::Two(join, Box::new([one, other]))))
    }

    /// Makes one of two matrices, which is stored in full or as a product.
    fn factor(tensors: &Tensors<'_>, full: Role, parts: [Role; 3]) -> Result<Self> {
        let part = parts.into_iter().find_map(|role| tensors.get(role));
        match (tensors.get(full), part) {
            (Some(full), None) => Ok(Self::Stored(full)),
            (Some(_), Some(part)) => {
                let found = "a factor of a matrix that it also has whole".to_owned();
                Err(at(tensors.source, part, AdapterProblem::Unsupported { found }))
            }
            (None, _) => {
                let has_core = tensors.get(parts[2]).is_some();
                Ok(Self::Product(Pair::new(tensors, parts, [has_core, false])?))
            }
        }
    }

    /// Reads a product as a stack of products for this many experts, as PEFT stores it.
    pub(super) fn for_experts(&mut self, experts: usize) {
        if let Self::Product(pair) = self {
            pair.form = Form::Experts(experts);
        }
    }

    /// Returns the positions of the tensors that show the rows and the rank.
    pub(super) fn ends(&self) -> [usize; 2] {
        match self {
            Self::Stored(position) => [*position; 2],
            Self::Product(pair) => [pair.up.position, pair.down.position],
            Self::Two(_, both) => both[1].ends(),
        }
    }

    /// Checks that the tensors fit each other, and returns the shape of the result.
    pub(super) fn shape(&self, source: &Source) -> Result<ProductShape> {
        let (join, both) = match self {
            Self::Stored(position) => {
                let dims = checked(source, *position, 1)?.shape();
                let (rows, row) = (dims[0], dims[1..].to_vec());
                return Ok(ProductShape { rows, row, stack: None, rank: None });
            }
            Self::Product(pair) => return pair.shape(source),
            Self::Two(join, both) => (join, both),
        };
        let (one, mut other) = (both[0].shape(source)?, both[1].shape(source)?);
        let [up, down] = both[1].ends();
        if let (Some(rank), Some(found)) = (one.rank, other.rank)
            && rank != found
        {
            let [expected, found] = [rank, found].map(|it| format!("a rank of {it}"));
            return Err(at(source, down, mismatch(expected, found)));
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
            return Err(at(source, up, mismatch(expected, found)));
        }
        Ok(other)
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
                let shape = both[1].shape(source).map_err(failed)?;
                let [one, other] = both.each_ref().map(|matrix| matrix.read(source, false));
                let both = Box::new([one?, other?]);
                Ok(Factors::Two(*join, both, [shape.rows, shape.columns()]))
            }
        }
    }
}

impl Factor {
    /// Returns the dimensions as they are in a product.
    fn dims(self, source: &Source) -> Result<Vec<usize>> {
        let mut dims = checked(source, self.position, 2)?.shape().to_vec();
        if self.is_turned && dims.len() == 2 {
            dims.reverse();
        }
        Ok(dims)
    }

    fn read(self, source: &Source) -> io::Result<Vec<f32>> {
        let values = read_all(source, self.position)?;
        Ok(match source.tensor_at(self.position).map(|tensor| tensor.shape()) {
            Some([_, columns]) if self.is_turned => transposed(&values, *columns),
            _ => values,
        })
    }
}

impl Pair {
    /// Makes a product of tensors with these roles: the factors, and the core if there is one.
    fn new(tensors: &Tensors<'_>, roles: [Role; 3], is_turned: [bool; 2]) -> Result<Self> {
        let [up, down] = [tensors.need(roles[0])?, tensors.need(roles[1])?];
        Ok(Self {
            up: Factor { position: up, is_turned: is_turned[0] },
            down: Factor { position: down, is_turned: is_turned[1] },
            mid: tensors.get(roles[2]),
            form: Form::Single,
        })
    }

    fn shape(&self, source: &Source) -> Result<ProductShape> {
        let (down, up) = (self.down.dims(source)?, self.up.dims(source)?);
        let (stack, rows, rank, row) = match (self.form, &*up, &*down) {
            (Form::Single, &[rows, rank, ref ones @ ..], &[inner, ref row @ ..])
                if rank == inner && ones.len() < row.len() && is_ones(ones) =>
            {
                (None, rows, rank, row.to_vec())
            }
            (Form::Stack, &[n, rows, rank], &[m, inner, columns]) if n == m && rank == inner => {
                (Some(n), rows, rank, vec![columns])
            }
            (Form::Experts(n), &[rows, all], &[inner, columns])
                if all == inner && all.is_multiple_of(n) =>
            {
                (Some(n), rows, all / n.max(1), vec![columns])
            }
            _ => {
                let expected = format!("a matrix that is multiplied with one of {}", Shape(&down));
                let found = format!("shape {}; groups of channels are not merged", Shape(&up));
                return Err(at(source, self.up.position, mismatch(expected, found)));
            }
        };
        let mut shape = ProductShape { rows, row, stack, rank: Some(rank) };
        if let Some(mid) = self.mid {
            let mid = checked(source, mid, 3)?;
            let ones = shape.row.split_off(1);
            if mid.shape()[..2] != [rank, rank] || !is_ones(&ones) {
                let expected = format!("shape [{rank}, {rank}] and the sizes of a kernel");
                return Err(misshapen(&mid, expected));
            }
            shape.row.extend(&mid.shape()[2..]);
        }
        Ok(shape)
    }

    fn read(&self, source: &Source, is_transposed: bool) -> io::Result<Product> {
        let shape = self.shape(source).map_err(failed)?;
        let rank = shape.rank.unwrap_or(1);
        let mut up = self.up.read(source)?;
        let mut down = self.down.read(source)?;
        if let Form::Experts(n) = self.form {
            // `[rows, rank, n]` becomes `[n, rows, rank]`.
            up = transposed(&up, n);
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

/// Returns the number of elements with these dimensions.
pub(super) fn len(dims: &[usize]) -> usize {
    dims.iter().fold(1, |all, &dim| all.saturating_mul(dim))
}
