//! The step and the hyperparameters of an optimizer, as entries of the metadata.

use candle_nn::ParamsAdamW;
use safetensors_core::Metadata;
use safetensors_core::error::Mismatch;

use super::AdamW;

/// Keys of this project are never names of tied tensors.
const PREFIX: &str = "safetensors_bridge.adamw.";

const STEP: &str = "step";

const STEP_FORM: &str = "a number of steps from 0 to 2147483647";

const FLOAT_FORM: &str = "a decimal number, or the bits of a NaN as 0x and 16 hex digits";

/// The most bytes of a malformed value in an error.
const EXCERPT: usize = 120;

pub(super) fn is_setting(key: &str) -> bool {
    key.starts_with(PREFIX)
}

impl AdamW {
    pub(super) fn metadata(&self) -> Metadata {
        let mut params = self.params.clone();
        let floats = fields(&mut params).map(|(name, value)| (key(name), write(*value)));
        floats.into_iter().chain([(key(STEP), self.step.to_string())]).collect()
    }

    /// Leaves missing values unchanged, and lists them in `mismatches` unless `allow_missing` is
    /// set. Lists malformed ones, too.
    pub(super) fn settings_of(
        &self,
        metadata: &Metadata,
        allow_missing: bool,
        mismatches: &mut Vec<Mismatch>,
    ) -> (usize, ParamsAdamW) {
        let mut step = self.step;
        let mut params = self.params.clone();
        let mut report = |name, expected, found: Option<&String>| {
            if found.is_some() || !allow_missing {
                // An entry of a hostile file may be as long as its header.
                let found = found.map(|text| text[..text.floor_char_boundary(EXCERPT)].into());
                mismatches.push(Mismatch::Metadata { key: key(name), expected, found });
            }
        };
        let found = metadata.get(&key(STEP));
        match found.and_then(|text| read_step(text)) {
            Some(value) => step = value,
            None => report(STEP, STEP_FORM, found),
        }
        for (name, field) in fields(&mut params) {
            let found = metadata.get(&key(name));
            match found.and_then(|text| read(text)) {
                Some(value) => *field = value,
                None => report(name, FLOAT_FORM, found),
            }
        }
        (step, params)
    }
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn fields(params: &mut ParamsAdamW) -> [(&'static str, &mut f64); 5] {
    let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = params;
    [("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps), ("weight_decay", weight_decay)]
}

/// Returns the shortest decimal with the same bits. No decimal keeps the bits of a NaN.
fn write(value: f64) -> String {
    // The shortest digits that read back as the same bits. A NaN has no digits.
    if value.is_nan() { format!("{:#018x}", value.to_bits()) } else { format!("{value:?}") }
}

fn read(text: &str) -> Option<f64> {
    match text.strip_prefix("0x") {
        Some(digits) => {
            let bits = u64::from_str_radix(digits, 16).ok()?;
            let value = f64::from_bits(bits);
            // A number has one spelling only, so that equal states are equal files.
            (digits.len() == 16 && value.is_nan()).then_some(value)
        }
        None => text.parse().ok(),
    }
}

fn read_step(text: &str) -> Option<usize> {
    // `powi` takes the step as `i32`.
    let step = text.parse::<u32>().ok().filter(|&step| i32::try_from(step).is_ok())?;
    // Refuses other spellings of a number, such as "+1" and "01".
    (step.to_string() == text).then_some(step as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_float_comes_back() {
        let edges = [0.0, -0.0, 0.1, 1e-8, 5e-324, f64::MAX, f64::MIN, f64::INFINITY, f64::NAN];
        let edges = edges.into_iter().chain([-f64::INFINITY, -f64::NAN, 1.0 / 3.0]);
        let random = (0..10_000_u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for value in edges.chain(random).chain([f64::from_bits(0x7ff0_0000_0000_0001)]) {
            let text = write(value);
            assert_eq!(read(&text).map(f64::to_bits), Some(value.to_bits()), "{text}");
        }
    }

    #[test]
    fn malformed_entries_are_refused() {
        for text in
            ["", " 1", "1 ", "0x", "0x3ff0000000000000", "0x7ff8", "1,5", "0x+ff8000000000000"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
        for text in ["", "-1", "+1", "01", "1.0", "1e3", "2147483648", "4294967296"] {
            assert_eq!(read_step(text), None, "{text:?}");
        }
        assert_eq!((read_step("0"), read_step("2147483647")), (Some(0), Some(2_147_483_647)));
    }
}
