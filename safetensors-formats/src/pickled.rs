//! Files that a program which reads pickles takes for one.
//!
//! A pickle has no fixed start, and text and bytes in it are skipped by their lengths. So the
//! header of a sound safetensors file can be the beginning of a pickle, which goes on in the values
//! of a tensor. Reading such a pickle runs what it imports, before anything is found to be wrong.

use std::io;

use safetensors_core::ReadAt;

/// The most opcodes that are followed. What has more is a pickle.
const STEPS: u32 = 100_000;
/// The bytes that are read at a time.
const CHUNK: u64 = 4096;
/// The longest line that can be the name of a module or of what is in it.
const NAME: usize = 256;

/// What a file imports first if it is read as a pickle from its first byte on. `None` if it cannot
/// be one, or imports nothing.
pub(crate) fn import(source: &impl ReadAt) -> io::Result<Option<String>> {
    let mut bytes = Bytes { source, at: 0, chunk: Vec::new(), start: 0 };
    match follow(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        found => found,
    }
}

/// Follows the opcodes to the first import. Whether the values on the stack suit is not looked at,
/// but that there are two texts before a name is taken from them.
fn follow(bytes: &mut Bytes<'_, impl ReadAt>) -> io::Result<Option<String>> {
    let mut texts = 0;
    for _ in 0..STEPS {
        let opcode = bytes.number(1)?;
        match opcode as u8 {
            // A class by two lines, or by two texts.
            b'c' | b'i' => {
                let (module, name) = (bytes.name()?, bytes.name()?);
                return Ok(module.zip(name).map(|(module, name)| format!("{module}.{name}")));
            }
            0x93 => return Ok((texts >= 2).then(|| "a class".into())),
            // Numbers, and positions in the memo.
            b'K' | b'q' | b'h' | 0x80 => bytes.skip(1),
            b'M' => bytes.skip(2),
            b'J' | b'r' | b'j' => bytes.skip(4),
            b'G' | 0x95 => bytes.skip(8),
            b'I' | b'L' | b'F' | b'g' | b'p' => bytes.skip_line()?,
            // Texts, bytes and long numbers.
            b'S' | b'V' => {
                texts += 1;
                bytes.skip_line()?;
            }
            b'U' | 0x8a | 0x8c | b'C' => {
                texts += 1;
                let len = bytes.number(1)?;
                bytes.skip(len);
            }
            b'X' | b'T' | b'B' | 0x8b => {
                texts += 1;
                let len = bytes.number(4)?;
                bytes.skip(len);
            }
            0x8d | 0x8e | 0x96 => {
                texts += 1;
                let len = bytes.number(8)?;
                bytes.skip(len);
            }
            // What has no argument. A call or an object needs an import before.
            b'('
            | b')'
            | b']'
            | b'}'
            | b'N'
            | b't'
            | b'l'
            | b'd'
            | b'a'
            | b'e'
            | b's'
            | b'u'
            | b'0'
            | b'1'
            | b'2'
            | 0x85..=0x89
            | 0x8f..=0x91
            | 0x94 => {}
            // The end, or no opcode.
            _ => return Ok(None),
        }
    }
    Ok(Some("more than can be followed".into()))
}

/// The bytes of a file, front to back.
struct Bytes<'a, S> {
    source: &'a S,
    at: u64,
    /// The bytes from `start` on that are read already.
    chunk: Vec<u8>,
    start: u64,
}

impl<S: ReadAt> Bytes<'_, S> {
    fn byte(&mut self) -> io::Result<u8> {
        let at = self.at;
        let is_there = at >= self.start && at - self.start < self.chunk.len() as u64;
        if !is_there {
            let left = self.source.byte_len().saturating_sub(at);
            if left == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.chunk.resize(left.min(CHUNK) as usize, 0);
            self.start = at;
            self.source.read_exact_at(&mut self.chunk, at)?;
        }
        self.at += 1;
        Ok(self.chunk[(at - self.start) as usize])
    }

    /// A number of so many bytes, little-endian.
    fn number(&mut self, len: u32) -> io::Result<u64> {
        (0..len).try_fold(0, |number, i| Ok(number | u64::from(self.byte()?) << (8 * i)))
    }

    fn skip(&mut self, len: u64) {
        self.at = self.at.saturating_add(len);
    }

    fn skip_line(&mut self) -> io::Result<()> {
        while self.byte()? != b'\n' {}
        Ok(())
    }

    /// A line that can be the name of a module or of what is in it.
    fn name(&mut self) -> io::Result<Option<String>> {
        let mut name = String::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                byte if byte.is_ascii_alphanumeric() || b"_.".contains(&byte) => {
                    name.push(byte.into());
                }
                b'\r' => {}
                _ => return Ok(None),
            }
            if name.len() > NAME {
                return Ok(None);
            }
        }
        Ok(Some(name).filter(|name| !name.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_import_is_found_and_nothing_else_is_one() {
        for (bytes, found) in [
            (&b"cos\nsystem\n(S'ls'\ntR."[..], Some("os.system")),
            (
                b"\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c\x02os\x94\x8c\x06system\x94\x93.",
                Some("a class"),
            ),
            (b"(S'ls'\nios\nsystem\n.", Some("os.system")),
            (b"X\x03\0\0\0\0\0\0U\x01\0N0]}(K\x01M\0\0J\0\0\0\0cos\r\nx\r\n", Some("os.x")),
            // Data alone is harmless, and so is what ends before it imports.
            (b"\x80\x02}q\0X\x01\0\0\0ai\0", None),
            (b"(lp0\nI1\na.cos\nsystem\n", None),
            (b"c{\nsystem\n", None),
            (b"\x93", None),
            (b"", None),
        ] {
            assert_eq!(import(&bytes).unwrap().as_deref(), found, "{bytes:?}");
            (0..bytes.len()).for_each(|len| _ = import(&&bytes[..len]).unwrap());
        }
        assert!(import(&vec![b'N'; 200_000]).unwrap().is_some());
        assert!(import(&[&b"\x8e"[..], &[0xff; 8]].concat()).unwrap().is_none());
    }
}
