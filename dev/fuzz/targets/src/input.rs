//! [`Input`]: the bytes that the engine made up, taken from the front as choices.

/// Bytes that are taken from the front. At the end there are zeros, so that every input is a whole
/// one and a short input is a simple case.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The bytes of an input.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// A number below `end`, which is from 1 to 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// One of several values.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// True for an odd byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Eight bytes as a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    /// The next bytes, fewer than `len` at the end.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes a text of at most `max` bytes of the input. Bytes that are not UTF-8 are replaced.
    pub fn text(&mut self, max: usize) -> String {
        let len = self.below(max + 1);
        String::from_utf8_lossy(self.take(len)).into_owned()
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Takes exactly `len` bytes: the rest of the input, then its repetition with a step.
    pub fn filled(&mut self, len: usize) -> Vec<u8> {
        let seed = self.byte();
        let mut bytes = self.take(len.min(usize::from(seed))).to_vec();
        let mut last = seed;
        bytes.resize_with(len, || {
            last = last.wrapping_mul(5).wrapping_add(3);
            last
        });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Input;

    #[test]
    fn an_input_has_no_end() {
        let mut input = Input::new(&[7, 2, b'a', b'b', 1]);
        assert_eq!(input.below(4), 3);
        assert_eq!(input.text(10), "ab");
        assert!(input.flag());
        assert_eq!((input.byte(), input.u64(), input.rest()), (0, 0, &[][..]));
        assert_eq!(input.filled(3), [3, 18, 93]);
    }
}
