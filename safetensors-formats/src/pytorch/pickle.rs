//! The opcodes of a pickle: a stack machine whose values are the objects of [`Values`].
//!
//! It knows what `pickletools` documents, of the protocols 0 to 5, but for what PyTorch cannot
//! write: the registry of extensions, and buffers outside the pickle.

use std::collections::HashMap;
use std::io::BufRead;

use super::bytes::Bytes;
use super::rebuild;
use super::text::{integer, raw_unicode, unquoted};
use super::values::{Node, Value, Values};
use crate::error::{ErrorKind, Result};

/// Reads one pickle, and leaves the bytes behind it unread. Returns its root.
pub(super) fn read<R: BufRead>(bytes: &mut Bytes<R>, values: &mut Values) -> Result<Value> {
    let steps = values.most_steps();
    let mut machine = Machine {
        bytes,
        values,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        pushed: 0,
        steps,
    };
    while machine.step()? {}
    machine.pop()
}

struct Machine<'a, R> {
    bytes: &'a mut Bytes<R>,
    values: &'a mut Values,
    stack: Vec<Value>,
    /// The heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// How many values were pushed so far.
    pushed: usize,
    /// The steps that searches for tensors may still take.
    steps: usize,
}

impl<R: BufRead> Machine<'_, R> {
    /// Carries out one opcode. `false` at the end.
    fn step(&mut self) -> Result<bool> {
        let opcode = self.bytes.byte()?;
        match opcode {
            b'.' => return Ok(false),
            0x80 => {
                let version = self.bytes.byte()?;
                if version > 5 {
                    return Err(self.bytes.problem(format!("protocol {version} is unknown")));
                }
            }
            // A frame: only its length.
            0x95 => _ = self.bytes.array::<8>()?,

            // Numbers and the like.
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => {
                let number = self.bytes.byte()?;
                self.push(Value::Int(number.into()))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.bytes.array()?);
                self.push(Value::Int(number.into()))?;
            }
            b'J' => {
                let number = i32::from_le_bytes(self.bytes.array()?);
                self.push(Value::Int(number.into()))?;
            }
            b'I' | b'L' => {
                let line = self.bytes.text_line()?;
                let value = match (opcode, line.as_str()) {
                    (b'I', "00") => Value::Bool(false),
                    (b'I', "01") => Value::Bool(true),
                    _ => match line.strip_suffix('L').unwrap_or(&line).parse() {
                        Ok(number) => Value::Int(number),
                        Err(_) => self.values.add(Node::Bytes(line.into_bytes().into()))?,
                    },
                };
                self.push(value)?;
            }
            0x8a | 0x8b => {
                let len = match opcode {
                    0x8a => self.bytes.byte()?.into(),
                    _ => u32::from_le_bytes(self.bytes.array()?).into(),
                };
                let digits = self.bytes.bytes(len)?;
                let value = match integer(&digits) {
                    Some(number) => Value::Int(number),
                    None => self.values.add(Node::Bytes(digits.into()))?,
                };
                self.push(value)?;
            }
            b'F' => {
                self.bytes.line()?;
                self.push(Value::Float)?;
            }
            b'G' => {
                self.bytes.array::<8>()?;
                self.push(Value::Float)?;
            }

            // Texts and bytes. Python 2 has one type for both.
            b'S' | b'V' => {
                let line = self.bytes.line()?;
                let text = match opcode {
                    b'S' => unquoted(&line),
                    _ => raw_unicode(&line),
                };
                let text = text.ok_or_else(|| self.bytes.problem("a text has a wrong escape"))?;
                self.push_node(Node::Text(text.into()))?;
            }
            b'X' | 0x8c | 0x8d | b'T' | b'U' | b'B' | b'C' | 0x8e | 0x96 => self.text(opcode)?,

            // Containers.
            b'(' => {
                self.values.check_count(self.marks.len())?;
                self.marks.push(self.stack.len());
            }
            b')' => self.push_node(Node::Tuple(Vec::new()))?,
            b']' | 0x8f => self.push_node(Node::List(Vec::new()))?,
            b'}' => self.push_node(dict(Vec::new()))?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.push_node(Node::Tuple(items))?;
            }
            b'l' | 0x91 => {
                let items = self.pop_to_mark()?;
                self.push_node(Node::List(items))?;
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                let items = self.pairs(items)?;
                self.push_node(dict(items))?;
            }
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                items.reverse();
                self.push_node(Node::Tuple(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_to_mark()?;
                self.extend(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                let items = self.pairs(items)?;
                self.set(items)?;
            }

            // The stack and the memo.
            b'0' => match self.marks.last() == Some(&self.stack.len()) {
                true => _ = self.marks.pop(),
                false => _ = self.pop()?,
            },
            b'1' => _ = self.pop_to_mark()?,
            b'2' => {
                let top = self.top()?;
                self.push(top)?;
            }
            b'q' | b'r' | b'p' | 0x94 => {
                let index = match opcode {
                    0x94 => self.memo.len() as u32,
                    _ => self.index(opcode)?,
                };
                let top = self.top()?;
                self.values.check_count(self.memo.len())?;
                self.memo.insert(index, top);
            }
            b'h' | b'j' | b'g' => {
                let index = self.index(opcode)?;
                let value = self.memo.get(&index).copied();
                let value = value.ok_or_else(|| {
                    self.bytes.problem(format!("it uses value {index} of its memo, which is empty"))
                })?;
                self.push(value)?;
            }

            // Classes and objects. No code of a class is known here, and none is run.
            b'c' => {
                let module = self.bytes.text_line()?.into();
                let name = self.bytes.text_line()?.into();
                self.push_node(Node::Class { module, name })?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |value| self.values.text(value).map(Box::from);
                let (Some(module), Some(name)) = (text(module), text(name)) else {
                    return Err(self.bytes.problem("the name of a class is not a text"));
                };
                self.push_node(Node::Class { module, name })?;
            }
            b'R' | 0x81 | 0x92 | b'i' | b'o' => self.object(opcode)?,
            b'b' => {
                let state = self.pop()?;
                let object = self.top()?;
                rebuild::build(self.values, object, state)
                    .ok_or_else(|| self.bytes.problem("a value without attributes gets some"))?;
            }
            b'P' | b'Q' => {
                let id = match opcode {
                    b'P' => {
                        let line = self.bytes.text_line()?;
                        self.values.add(Node::Text(line.into()))?
                    }
                    _ => self.pop()?,
                };
                let storage = rebuild::storage(self.values, id)
                    .map_err(|problem| self.bytes.problem(problem))?;
                self.push_node(Node::Storage(storage))?;
            }
            _ => return Err(self.bytes.problem(format!("the opcode {opcode:#04x} is unknown"))),
        }
        Ok(true)
    }

    /// Reads a text or bytes whose length comes first.
    fn text(&mut self, opcode: u8) -> Result<()> {
        let len = match opcode {
            0x8c | b'U' | b'C' => self.bytes.byte()?.into(),
            b'X' | b'T' | b'B' => u32::from_le_bytes(self.bytes.array()?).into(),
            _ => u64::from_le_bytes(self.bytes.array()?),
        };
        let bytes = self.bytes.bytes(len)?;
        let node = match opcode {
            b'B' | b'C' | 0x8e | 0x96 => Node::Bytes(bytes.into()),
            _ => match String::from_utf8(bytes) {
                Ok(text) => Node::Text(text.into()),
                Err(error) if matches!(opcode, b'T' | b'U') => {
                    Node::Bytes(error.into_bytes().into())
                }
                Err(_) => return Err(self.bytes.problem("a text is not UTF-8")),
            },
        };
        self.push_node(node)
    }

    /// Makes an object of a class and its arguments.
    fn object(&mut self, opcode: u8) -> Result<()> {
        let (class, arguments) = match opcode {
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                (self.pop()?, arguments)
            }
            0x92 => {
                let (keywords, arguments) = (self.pop()?, self.pop()?);
                let both = self.values.add(Node::Tuple(vec![arguments, keywords]))?;
                (self.pop()?, both)
            }
            b'i' => {
                let module = self.bytes.text_line()?.into();
                let name = self.bytes.text_line()?.into();
                let class = self.values.add(Node::Class { module, name })?;
                let arguments = self.pop_to_mark()?;
                (class, self.values.add(Node::Tuple(arguments))?)
            }
            _ => {
                let mut arguments = self.pop_to_mark()?;
                if arguments.is_empty() {
                    return Err(self.bytes.problem("an object has no class"));
                }
                let class = arguments.remove(0);
                (class, self.values.add(Node::Tuple(arguments))?)
            }
        };
        let at = self.bytes.position();
        let made = rebuild::call(self.values, class, arguments, opcode == b'R', &mut self.steps);
        let value = made.map_err(|error| match error {
            rebuild::Wrong::Problem(problem) => ErrorKind::BadPickle { offset: at, problem }.into(),
            rebuild::Wrong::Error(error) => error,
        })?;
        self.push(value)
    }

    fn index(&mut self, opcode: u8) -> Result<u32> {
        Ok(match opcode {
            b'q' | b'h' => self.bytes.byte()?.into(),
            b'r' | b'j' => u32::from_le_bytes(self.bytes.array()?),
            _ => {
                let line = self.bytes.text_line()?;
                line.parse().map_err(|_| self.bytes.problem("a position is not a number"))?
            }
        })
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.values.check_count(self.pushed)?;
        self.pushed += 1;
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<()> {
        let value = self.values.add(node)?;
        self.push(value)
    }

    /// The value on the stack, above the last mark.
    fn top(&self) -> Result<Value> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&value) if self.stack.len() > bottom => Ok(value),
            _ => Err(self.bytes.problem("it takes a value from its empty stack")),
        }
    }

    fn pop(&mut self) -> Result<Value> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => Err(self.bytes.problem("it takes values from a mark that is not there")),
        }
    }

    fn pairs(&self, items: Vec<Value>) -> Result<Vec<(Value, Value)>> {
        match items.as_chunks::<2>() {
            (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
            _ => Err(self.bytes.problem("a key of a dictionary has no value")),
        }
    }

    /// Adds items to the list, or to the object, on the stack.
    fn extend(&mut self, items: Vec<Value>) -> Result<()> {
        let top = self.top()?;
        match self.values.node_mut(top) {
            Some(Node::List(list) | Node::Object { parts: list, .. }) => {
                list.extend(items);
                Ok(())
            }
            _ => Err(self.bytes.problem("it adds items to something other than a list")),
        }
    }

    /// Adds items to the dictionary, or to the object, on the stack.
    fn set(&mut self, pairs: Vec<(Value, Value)>) -> Result<()> {
        let top = self.top()?;
        match self.values.node_mut(top) {
            Some(Node::Dict { items, .. }) => items.extend(pairs),
            Some(Node::Object { parts, .. }) => {
                parts.extend(pairs.into_iter().flat_map(|(key, value)| [key, value]));
            }
            _ => {
                return Err(self
                    .bytes
                    .problem("it sets items of something other than a dictionary"));
            }
        }
        Ok(())
    }
}

/// A dictionary of these items.
fn dict(items: Vec<(Value, Value)>) -> Node {
    Node::Dict { items, state: Value::None }
}
