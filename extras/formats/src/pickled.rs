//! Recognises files that a program can take for a pickle.
//!
//! A pickle has no fixed start, and skips texts and bytes by their lengths. So the header of a
//! valid safetensors file can begin a pickle that continues in a tensor's values. Reading it runs
//! its imports, before any error is found.

use std::io;

use safetensors_core::ReadAt;

use crate::opcodes::{self as op, Argument};

/// Opcodes to follow. A file with more is a pickle.
const STEPS: u32 = 100_000;
/// A file that needs more reads is a pickle.
const READS: u32 = 32;
/// Bytes of a read, which double while a text without a length continues. All reads have 7 MiB at
/// most.
const CHUNK: usize = 4 << 10;
const LARGEST_CHUNK: usize = 256 << 10;
const NAME: usize = 256;

/// Returns the first import of a file read as a pickle. `None` if it is not one, or imports
/// nothing.
pub(crate) fn import(source: &dyn ReadAt) -> io::Result<Option<String>> {
    let mut bytes = Bytes { source, at: 0, chunk: Vec::new(), start: 0, reads: 0 };
    match follow(&mut bytes) {
        Ok(found) => Ok(found),
        Err(Stop::End) => Ok(None),
        Err(Stop::TooMuch) => Ok(Some("more than can be followed".into())),
        Err(Stop::Io(error)) => Err(error),
    }
}

enum Stop {
    End,
    TooMuch,
    Io(io::Error),
}

/// Follows every opcode of all protocols to the first import, or to a point where no reader
/// continues. Types on the stack are not checked, except for two texts before a name is taken.
fn follow(bytes: &mut Bytes<'_>) -> Result<Option<String>, Stop> {
    let mut texts = 0;
    for _ in 0..STEPS {
        match bytes.byte()? {
            // A class by two lines, or by two texts.
            op::GLOBAL | op::INST => {
                let module = bytes.name()?;
                let name = bytes.name()?;
                return Ok(module.zip(name).map(|(module, name)| format!("{module}.{name}")));
            }
            op::STACK_GLOBAL => return Ok((texts >= 2).then(|| "a class".into())),
            // A copy may be one of a text.
            op::DUP if texts > 0 => texts += 1,
            op::BINGET if texts > 0 => {
                texts += 1;
                bytes.skip(1);
            }
            op::LONG_BINGET if texts > 0 => {
                texts += 1;
                bytes.skip(4);
            }
            opcode => {
                if !pass(bytes, opcode, &mut texts)? {
                    return Ok(None);
                }
            }
        }
    }
    Err(Stop::TooMuch)
}

/// Skips an argument, and counts texts on the stack. `false` for the end, an unknown opcode, or an
/// argument that no reader takes.
fn pass(bytes: &mut Bytes<'_>, opcode: u8, texts: &mut u32) -> Result<bool, Stop> {
    match (opcode, op::argument(opcode)) {
        // The end, or no opcode.
        (op::STOP, _) | (_, None) => return Ok(false),
        // A call, an object or its state needs no import to be passed: some values take the state
        // None, and a program may have its own names.
        (_, Some(Argument::Nothing)) => {}
        // Numbers, positions in the memo, and codes of classes.
        (_, Some(Argument::Bytes(len))) => bytes.skip(len),
        // Texts, bytes and long numbers.
        (_, Some(Argument::Text(number))) => {
            *texts += 1;
            let len = bytes.number(number)?;
            bytes.skip(len);
        }
        // Only a program with its own names passes such a name. A file of zeros with such a length
        // of its header would be one name of megabytes, and is no pickle.
        (op::PERSID, _) => {
            let is_first = bytes.at == 1;
            match bytes.line(|_, byte| byte.is_ascii()) {
                Ok(true) => *texts += 1,
                Ok(false) => return Ok(false),
                Err(Stop::TooMuch) if is_first => return Ok(false),
                Err(stop) => return Err(stop),
            }
        }
        (op::STRING, _) => {
            *texts += 1;
            return bytes.line(|at, byte| at > 0 || b"'\"".contains(&byte));
        }
        (op::UNICODE, _) => {
            *texts += 1;
            bytes.line(|_, _| true)?;
        }
        (_, Some(Argument::Line)) => {
            // Some readers ignore the text after a zero behind the number.
            if !bytes.line(|at, byte| at > 0 || begins_number(byte))? {
                return Ok(false);
            }
            *texts += u32::from(opcode == op::GET && *texts > 0);
        }
    }
    Ok(true)
}

fn begins_number(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_whitespace() || b"+-._\x0binIN".contains(&byte)
}

struct Bytes<'a> {
    source: &'a dyn ReadAt,
    at: u64,
    chunk: Vec<u8>,
    start: u64,
    reads: u32,
}

impl Bytes<'_> {
    fn byte(&mut self) -> Result<u8, Stop> {
        let at = self.at;
        let end = self.start + self.chunk.len() as u64;
        if !(self.start..end).contains(&at) {
            let left = self.source.byte_len().saturating_sub(at);
            if left == 0 {
                return Err(Stop::End);
            }
            if self.reads == READS {
                return Err(Stop::TooMuch);
            }
            let goes_on = at == end && self.reads > 0;
            let len = if goes_on { 2 * self.chunk.len() } else { CHUNK };
            self.chunk.resize(left.min(len.min(LARGEST_CHUNK) as u64) as usize, 0);
            self.start = at;
            self.reads += 1;
            self.source.read_exact_at(&mut self.chunk, at).map_err(Stop::Io)?;
        }
        self.at += 1;
        Ok(self.chunk[(at - self.start) as usize])
    }

    fn number(&mut self, len: u32) -> Result<u64, Stop> {
        (0..len).try_fold(0, |number, i| Ok(number | u64::from(self.byte()?) << (8 * i)))
    }

    fn skip(&mut self, len: u64) {
        self.at = self.at.saturating_add(len);
    }

    /// `may_have` takes position and value. `false` for a byte that the line cannot have.
    fn line(&mut self, may_have: impl Fn(u64, u8) -> bool) -> Result<bool, Stop> {
        for at in 0.. {
            match self.byte()? {
                b'\n' => break,
                byte if !may_have(at, byte) => return Ok(false),
                _ => {}
            }
        }
        Ok(true)
    }

    fn name(&mut self) -> Result<Option<String>, Stop> {
        let mut name = String::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                // A name of any length can lead from a module to an item in it, and back again.
                byte if byte.is_ascii_alphanumeric() || b"_.".contains(&byte) => {
                    if name.len() < NAME {
                        name.push(byte.into());
                    }
                }
                b'\r' => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(name).filter(|name| !name.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_import_of_a_pickle_is_found() {
        for (bytes, found) in [
            (&b"cos\nsystem\n(S'ls'\ntR."[..], Some("os.system")),
            (
                b"\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c\x02os\x94\x8c\x06system\x94\x93.",
                Some("a class"),
            ),
            (b"(S'ls'\nios\nsystem\n.", Some("os.system")),
            (b"X\x03\0\0\0\0\0\0U\x01\0N0]}(K\x01M\0\0J\0\0\0\0cos\r\nx\r\n", Some("os.x")),
            // A class by one text, twice.
            (b"\x8c\x04copy2\x93)R.", Some("a class")),
            (b"\x8c\x04copyq\0h\0\x93)R.", Some("a class")),
            // Data alone is harmless, and so is a file that ends before it imports.
            (b"\x80\x02}q\0X\x01\0\0\0ai\0", None),
            (b"(lp0\nI1\na.cos\nsystem\n", None),
            (b"c{\nsystem\n", None),
            (b"\x93", None),
            (b"\x8c\x04copy\x93", None),
            // No such line is a number or a text in quotes, and no other byte an opcode.
            (b"I\0\ncos\nsystem\n", None),
            (b"Sx\ncos\nsystem\n", None),
            (b"P\xff\ncos\nsystem\n", None),
            (b"\x99cos\nsystem\n", None),
            (b"", None),
        ] {
            assert_eq!(import(&bytes).unwrap().as_deref(), found, "{bytes:?}");
            (0..bytes.len()).for_each(|len| _ = import(&&bytes[..len]).unwrap());
        }
        assert!(import(&vec![b'N'; 200_000]).unwrap().is_some());
        let long = [&b"\x80\x04cos\n"[..], &b"path.os.".repeat(100), b"getpid\n"].concat();
        assert!(import(&long).unwrap().unwrap().starts_with("os.path.os.path"));
        assert!(import(&[&b"\x8e"[..], &[0xff; 8]].concat()).unwrap().is_none());
    }

    #[test]
    fn every_opcode_goes_on() {
        let lines =
            [&b"I1\n"[..], b"L1L\n", b"F0.5\n", b"g0\n", b"p0\n", b"S'a'\n", b"Va\n", b"Pa\n"];
        let lengths = [&b"U\x01a"[..], b"\x8a\x01a", b"\x8c\x01a", b"C\x01a", b"X\x01\0\0\0a"];
        let long = [&b"T\x01\0\0\0a"[..], b"B\x01\0\0\0a", b"\x8b\x01\0\0\0a"];
        let longest = [0x8d, 0x8e, 0x96].map(|opcode| [opcode, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
        let numbers = [(1, &b"Kqh\x80\x82"[..]), (2, b"M\x83"), (4, b"Jrj\x84"), (8, b"G\x95")];
        let numbers = numbers.iter().flat_map(|(len, opcodes)| {
            opcodes.iter().map(|&opcode| [&[opcode][..], &vec![0; *len]].concat())
        });
        let alone = b"()]}NQRabdelostu012\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x94\x97\x98";
        let mut all: Vec<Vec<u8>> = alone.iter().map(|&opcode| vec![opcode]).collect();
        all.extend(lines.iter().chain(&lengths).chain(&long).map(|it| it.to_vec()));
        all.extend(longest.iter().map(|it| it.to_vec()).chain(numbers));
        // 68 opcodes in all.
        assert_eq!(all.len(), 68 - [b'.', b'c', b'i', 0x93].len());
        for opcode in all {
            let bytes = [&opcode[..], b"cos\nsystem\n"].concat();
            assert_eq!(import(&bytes).unwrap().as_deref(), Some("os.system"), "{opcode:?}");
        }
    }

    #[test]
    fn few_bytes_are_read() {
        use std::ops::Range;
        use std::sync::Mutex;

        type Fill<'a> = &'a (dyn Fn(Range<u64>, &mut [u8]) + Sync);
        struct Counted<'a>(Fill<'a>, Mutex<(u32, u64)>);
        impl ReadAt for Counted<'_> {
            fn byte_len(&self) -> u64 {
                1 << 40
            }

            fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
                let mut counts = self.1.lock().unwrap();
                *counts = (counts.0 + 1, counts.1 + bytes.len() as u64);
                (self.0)(at..at + bytes.len() as u64, bytes);
                Ok(())
            }
        }
        // A line of zeros; and long texts, one after another.
        let zeros = |first: u8| {
            move |range: Range<u64>, bytes: &mut [u8]| {
                bytes.fill(0);
                if range.start == 0 {
                    bytes[0] = first;
                }
            }
        };
        let texts = |range: Range<u64>, bytes: &mut [u8]| {
            for (byte, at) in bytes.iter_mut().zip(range) {
                *byte = b"B\0\0\x10\0".get(at as usize % (5 + (1 << 20))).copied().unwrap_or(0);
            }
        };
        let is_found = |fill: Fill<'_>| {
            let source = Counted(fill, Mutex::default());
            let found = import(&source).unwrap().is_some();
            let (reads, read) = source.1.into_inner().unwrap();
            assert!(reads <= READS && read <= 7 << 20, "{reads} {read}");
            found
        };
        assert!(is_found(&texts) && is_found(&zeros(b'V')) && !is_found(&zeros(b'c')));
        // A file of zeros is no pickle because of the length of its header.
        assert!(!is_found(&zeros(b'P')) && !is_found(&zeros(b'p')) && !is_found(&zeros(b'I')));
    }
}
