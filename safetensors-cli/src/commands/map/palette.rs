//! The colours of modules and dtypes.

use safetensors_core::Dtype;

use crate::input::other::Kind;

/// Red, green, blue.
type Colour = [u8; 3];

const PAPER: Colour = [255, 255, 255];
const INK: Colour = [34, 40, 49];

/// Paul Tol's *light* palette, made for dark labels and colour-blind readers.
pub(super) const GROUPS: [Colour; 8] = [
    [119, 170, 221],
    [238, 136, 102],
    [68, 187, 153],
    [238, 221, 136],
    [255, 170, 187],
    [153, 221, 255],
    [187, 204, 51],
    [170, 170, 0],
];

/// Types of another format share a colour if the first digit of their names is equal: `Q4_0`,
/// `Q4_K` and `IQ4_XS` have 4 bits.
pub(super) fn kind(kind: Kind<'_>) -> Colour {
    if let Some(of) = kind.dtype() {
        return dtype(of);
    }
    let digit = kind.name().bytes().find(u8::is_ascii_digit).unwrap_or_default();
    GROUPS[usize::from(digit) % GROUPS.len()]
}

/// Returns a colour of Paul Tol's palette for colour-blind readers. Related floats share a hue.
fn dtype(dtype: Dtype) -> Colour {
    match dtype {
        Dtype::F64 => [51, 34, 136],
        Dtype::F32 => [68, 119, 170],
        Dtype::F16 => [34, 136, 51],
        Dtype::BF16 => [68, 170, 153],
        Dtype::F8_E4M3 | Dtype::F8_E4M3FNUZ => [204, 187, 68],
        Dtype::F8_E5M2 | Dtype::F8_E5M2FNUZ => [221, 204, 119],
        Dtype::F8_E8M0 => [153, 153, 51],
        Dtype::F4 | Dtype::F6_E2M3 | Dtype::F6_E3M2 => [238, 136, 102],
        Dtype::I64 | Dtype::U64 => [136, 34, 85],
        Dtype::I32 | Dtype::U32 => [170, 51, 119],
        Dtype::I16 | Dtype::U16 => [204, 102, 119],
        Dtype::I8 | Dtype::U8 => [204, 121, 167],
        Dtype::BOOL => [187, 187, 187],
        Dtype::C64 => [102, 204, 238],
        _ => [119, 119, 119],
    }
}

/// Returns the colour of letters with the better contrast on `fill`.
pub(super) fn ink_on(fill: Colour) -> Colour {
    if contrast(PAPER, fill) > contrast(INK, fill) { PAPER } else { INK }
}

/// `#4477aa`.
pub(super) fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns a contrast from 1 to 21, as the Web Content Accessibility Guidelines define it.
fn contrast(a: Colour, b: Colour) -> f64 {
    let luminance = |colour: Colour| {
        let [red, green, blue] = colour.map(|part| match f64::from(part) / 255.0 {
            part if part <= 0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    };
    let (a, b) = (luminance(a), luminance(b));
    a.max(b) / a.min(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_can_be_read_on_every_colour() {
        assert_eq!((contrast(PAPER, PAPER), contrast(PAPER, [0; 3])), (1.0, 21.0));
        let dtypes = Dtype::ALL.iter().map(|&of| dtype(of));
        for fill in dtypes.chain(GROUPS) {
            let contrast = contrast(fill, ink_on(fill));
            assert!(contrast >= 4.0, "{fill:?}: {contrast}");
        }
    }
}
