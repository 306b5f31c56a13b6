//! Lays out areas as rectangles that are nearly square: the squarified treemap of Bruls, Huizing
//! and van Wijk.

/// A rectangle, in the picture's units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    /// The rectangle inside a margin; empty if there is no room.
    pub(super) fn inside(self, top: f64, side: f64) -> Self {
        let width = (self.width - 2.0 * side).max(0.0);
        let height = (self.height - top - side).max(0.0);
        Self { x: self.x + side, y: self.y + top, width, height }
    }

    fn area(self) -> f64 {
        self.width * self.height
    }
}

/// A rectangle for each weight, with an area in proportion. Weights must be positive and in
/// descending order.
pub(super) fn squarify(weights: &[f64], space: Rect) -> Vec<Rect> {
    let total: f64 = weights.iter().sum();
    let mut rects = Vec::with_capacity(weights.len());
    let (mut left, mut space) = (weights, space);
    let scale = if total > 0.0 { space.area() / total } else { 0.0 };
    while !left.is_empty() {
        let side = space.width.min(space.height);
        // A row grows as long as that makes its worst rectangle squarer.
        let (mut taken, mut sum, mut worst) = (0, 0.0, f64::INFINITY);
        for weight in left {
            let area = weight * scale;
            let grown = worst_ratio(left[0] * scale, area, sum + area, side);
            if taken > 0 && grown > worst {
                break;
            }
            (taken, sum, worst) = (taken + 1, sum + area, grown);
        }
        let (row, rest) = left.split_at(taken);
        space = place(row, scale, sum, space, &mut rects);
        left = rest;
    }
    rects
}

/// The largest ratio of sides in a row along `side` whose areas sum to `sum`.
fn worst_ratio(largest: f64, smallest: f64, sum: f64, side: f64) -> f64 {
    let (side, sum) = (side * side, sum * sum);
    (side * largest / sum).max(sum / (side * smallest))
}

/// Places a row along the shorter side. Returns the remaining space.
fn place(row: &[f64], scale: f64, sum: f64, space: Rect, rects: &mut Vec<Rect>) -> Rect {
    let lies = space.width < space.height;
    let side = if lies { space.width } else { space.height };
    let depth = if side > 0.0 { sum / side } else { 0.0 };
    let mut at = 0.0;
    for weight in row {
        let length = if sum > 0.0 { side * weight * scale / sum } else { 0.0 };
        rects.push(if lies {
            Rect { x: space.x + at, y: space.y, width: length, height: depth }
        } else {
            Rect { x: space.x, y: space.y + at, width: depth, height: length }
        });
        at += length;
    }
    if lies {
        Rect { y: space.y + depth, height: (space.height - depth).max(0.0), ..space }
    } else {
        Rect { x: space.x + depth, width: (space.width - depth).max(0.0), ..space }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_paper() {
        let weights = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let space = Rect { x: 0.0, y: 0.0, width: 6.0, height: 4.0 };
        let rects = squarify(&weights, space);
        for (rect, weight) in rects.iter().zip(weights) {
            assert!((rect.area() - weight).abs() < 1e-9, "{rect:?}");
            assert!(
                rect.x >= -1e-9
                    && rect.x + rect.width <= 6.0 + 1e-9
                    && rect.y + rect.height <= 4.0 + 1e-9
            );
        }
        assert_eq!((rects[0].width.round(), rects[0].height.round()), (3.0, 2.0));
    }

    #[test]
    fn no_space_and_nothing() {
        let none = Rect { x: 1.0, y: 1.0, width: 0.0, height: 0.0 };
        assert_eq!(squarify(&[2.0, 1.0], none).len(), 2);
        assert!(squarify(&[], none).is_empty());
        let thousands = vec![1.0; 10_000];
        assert_eq!(squarify(&thousands, Rect { width: 10.0, height: 10.0, ..none }).len(), 10_000);
    }
}
