//! [`Bytes`]: the bytes of a pickle.

use std::io::{BufRead, BufReader, Read};

use crate::budget::Budget;
use crate::counted::{Counted, Wording};
use crate::error::{ErrorKind, Result};

const LINE: usize = 256;

const WORDING: Wording = Wording {
    kind: |offset, problem| ErrorKind::BadPickle { offset, problem },
    ended: "it ends without its last opcode",
};

pub(super) type Bytes<'a> = Counted<BufReader<&'a mut dyn Read>>;

pub(super) fn counted<'a>(reader: &'a mut dyn Read, budget: &Budget) -> Bytes<'a> {
    Counted::limited(BufReader::new(reader), budget.limits().directory_bytes, WORDING)
}

impl Bytes<'_> {
    pub(super) fn bytes(&mut self, len: u64, budget: &Budget) -> Result<Vec<u8>> {
        self.count(len)?;
        let bytes = budget.read(&mut self.inner, len)?;
        if bytes.len() as u64 == len {
            Ok(bytes)
        } else {
            Err(self.problem("it ends inside a value"))
        }
    }

    pub(super) fn line(&mut self, budget: &Budget) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let most = line.len().max(LINE) as u64;
            let read = self.inner.by_ref().take(most).read_until(b'\n', &mut line)?;
            self.count(read as u64)?;
            budget.keep(read)?;
            if line.ends_with(b"\n") || (read as u64) < most {
                break;
            }
        }
        if line.pop() != Some(b'\n') {
            return Err(self.problem("it ends inside a line"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }

    pub(super) fn text_line(&mut self, budget: &Budget) -> Result<String> {
        String::from_utf8(self.line(budget)?).map_err(|_| self.problem("a text is not UTF-8"))
    }
}
