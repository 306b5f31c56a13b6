//! The opcodes of a pickle: a stack machine on [`Values`].
//!
//! It knows all of `pickletools`, protocols 0 to 5, except for extensions and external buffers,
//! which PyTorch cannot write.

use std::collections::HashMap;

use super::bytes::Bytes;
use super::call::Wrong;
use super::rebuild;
use super::text::{integer, raw_unicode, unquoted};
use super::values::{Node, Value, Values};
use crate::error::{Error, Result};
use crate::opcodes::{self as op, Argument};

/// Opcodes counted at once: threads share the count.
const COUNTED: usize = 64;

/// Leaves bytes behind the pickle unread. Returns the root.
pub(super) fn read(bytes: &mut Bytes<'_>, values: &mut Values) -> Result<Value> {
    let stack = Vec::new();
    let marks = Vec::new();
    let memo = HashMap::new();
    let mut machine = Machine { bytes, values, stack, marks, memo, highest: 0 };
    loop {
        machine.values.budget.work(COUNTED)?;
        for _ in 0..COUNTED {
            if !machine.step()? {
                return machine.pop();
            }
        }
    }
}

struct Machine<'a, 'b> {
    bytes: &'a mut Bytes<'b>,
    values: &'a mut Values,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    highest: usize,
}

impl Machine<'_, '_> {
    /// `false` at the end.
    fn step(&mut self) -> Result<bool> {
        match self.bytes.byte()? {
            op::STOP => return Ok(false),
            op::PROTO => {
                let version = self.bytes.byte()?;
                if version > 5 {
                    return Err(self.bytes.problem(format!("protocol {version} is unknown")));
                }
            }
            // Only the length of the following bytes.
            op::FRAME => _ = self.bytes.array::<8>()?,
            opcode => {
                let is_known = self.number(opcode)?
                    || self.line(opcode)?
                    || self.container(opcode)?
                    || self.items(opcode)?
                    || self.stack_or_memo(opcode)?
                    || self.class_or_object(opcode)?;
                if !is_known {
                    let problem = format!("the opcode {opcode:#04x} is unknown");
                    return Err(self.bytes.problem(problem));
                }
            }
        }
        Ok(true)
    }

    fn number(&mut self, opcode: u8) -> Result<bool> {
        let value = match opcode {
            op::NONE => Value::None,
            op::NEWTRUE => Value::Bool(true),
            op::NEWFALSE => Value::Bool(false),
            op::BININT1 => Value::Int(self.bytes.byte()?.into()),
            op::BININT2 => Value::Int(u16::from_le_bytes(self.bytes.array()?).into()),
            op::BININT => Value::Int(i32::from_le_bytes(self.bytes.array()?).into()),
            op::INT | op::LONG => {
                let line = self.bytes.text_line(&self.values.budget)?;
                match (opcode, line.as_str()) {
                    (op::INT, "00") => Value::Bool(false),
                    (op::INT, "01") => Value::Bool(true),
                    _ => match line.strip_suffix('L').unwrap_or(&line).parse() {
                        Ok(number) => Value::Int(number),
                        Err(_) => self.values.add(Node::Integer(line.into_bytes().into()))?,
                    },
                }
            }
            op::LONG1 | op::LONG4 => {
                let len = match opcode {
                    op::LONG1 => self.bytes.byte()?.into(),
                    _ => u32::from_le_bytes(self.bytes.array()?).into(),
                };
                let digits = self.bytes.bytes(len, &self.values.budget)?;
                match integer(&digits) {
                    Some(number) => Value::Int(number),
                    None => self.values.add(Node::Integer(digits.into()))?,
                }
            }
            op::FLOAT => {
                let number = self.bytes.text_line(&self.values.budget)?.parse();
                Value::Float(number.map_err(|_| self.bytes.problem("a float has no digits"))?)
            }
            op::BINFLOAT => Value::Float(f64::from_be_bytes(self.bytes.array()?)),
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    /// One type in Python 2.
    fn line(&mut self, opcode: u8) -> Result<bool> {
        match opcode {
            op::STRING | op::UNICODE => {
                let line = self.bytes.line(&self.values.budget)?;
                let text = match opcode {
                    op::STRING => unquoted(&line),
                    _ => raw_unicode(&line),
                };
                let text = text.ok_or_else(|| self.bytes.problem("a text has a wrong escape"))?;
                self.push_node(Node::Text(text.into()))?;
            }
            _ => match op::argument(opcode) {
                Some(Argument::Text(len_bytes)) => self.text(opcode, len_bytes)?,
                _ => return Ok(false),
            },
        }
        Ok(true)
    }

    fn container(&mut self, opcode: u8) -> Result<bool> {
        let node = match opcode {
            op::EMPTY_TUPLE => Node::Tuple(Vec::new()),
            op::EMPTY_LIST | op::EMPTY_SET => Node::List(Vec::new()),
            op::EMPTY_DICT => dict(Vec::new()),
            op::TUPLE => Node::Tuple(self.pop_to_mark()?),
            op::LIST | op::FROZENSET => Node::List(self.pop_to_mark()?),
            op::DICT => {
                let items = self.pop_to_mark()?;
                dict(self.pairs(items)?)
            }
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let count = usize::from(opcode - op::TUPLE1 + 1);
                self.values.budget.keep_all::<Value>(count)?;
                let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                items.reverse();
                Node::Tuple(items)
            }
            _ => return Ok(false),
        };
        self.push_node(node)?;
        Ok(true)
    }

    fn items(&mut self, opcode: u8) -> Result<bool> {
        match opcode {
            op::APPEND => {
                self.values.budget.keep_all::<Value>(1)?;
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            op::APPENDS | op::ADDITEMS => {
                let items = self.pop_to_mark()?;
                self.extend(items)?;
            }
            op::SETITEM => {
                self.values.budget.keep_all::<Value>(2)?;
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            op::SETITEMS => {
                let items = self.pop_to_mark()?;
                let items = self.pairs(items)?;
                self.set(items)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn stack_or_memo(&mut self, opcode: u8) -> Result<bool> {
        match opcode {
            op::MARK => {
                self.values.budget.keep_all::<usize>(1)?;
                self.marks.push(self.stack.len());
            }
            op::POP if self.marks.last() == Some(&self.stack.len()) => _ = self.marks.pop(),
            op::POP => _ = self.pop()?,
            op::POP_MARK => _ = self.pop_to_mark()?,
            op::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }
            op::BINPUT | op::LONG_BINPUT | op::PUT | op::MEMOIZE => {
                let index = match opcode {
                    op::MEMOIZE => self.memo.len() as u32,
                    _ => self.index(opcode)?,
                };
                let top = self.top()?;
                if self.memo.insert(index, top).is_none() {
                    self.values.budget.keep_all::<(u32, Value)>(1)?;
                }
            }
            op::BINGET | op::LONG_BINGET | op::GET => {
                let index = self.index(opcode)?;
                let value = self.memo.get(&index).copied();
                let value = value.ok_or_else(|| {
                    self.bytes.problem(format!("it uses value {index} of its memo, which is empty"))
                })?;
                self.push(value)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Never run.
    fn class_or_object(&mut self, opcode: u8) -> Result<bool> {
        match opcode {
            op::GLOBAL => {
                let module = self.bytes.text_line(&self.values.budget)?.into();
                let name = self.bytes.text_line(&self.values.budget)?.into();
                self.push_node(Node::Class { module, name })?;
            }
            op::STACK_GLOBAL => {
                let name = self.pop()?;
                let module = self.pop()?;
                let text = |value| self.values.text(value);
                let (Some(module), Some(name)) = (text(module), text(name)) else {
                    return Err(self.bytes.problem("the name of a class is not a text"));
                };
                // A long text can name many classes.
                self.values.budget.keep(module.len() + name.len())?;
                let module = module.into();
                let name = name.into();
                self.push_node(Node::Class { module, name })?;
            }
            op::REDUCE | op::NEWOBJ | op::NEWOBJ_EX | op::INST | op::OBJ => self.object(opcode)?,
            op::BUILD => {
                let state = self.pop()?;
                let object = self.top()?;
                let built = rebuild::build(self.values, object, state);
                built.map_err(|wrong| self.wrong(wrong))?;
            }
            op::PERSID | op::BINPERSID => {
                let id = match opcode {
                    op::PERSID => {
                        let line = self.bytes.text_line(&self.values.budget)?;
                        self.values.add(Node::Text(line.into()))?
                    }
                    _ => self.pop()?,
                };
                let value =
                    rebuild::persistent(self.values, id).map_err(|wrong| self.wrong(wrong))?;
                self.push(value)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a text or bytes after a length of `len_bytes`.
    fn text(&mut self, opcode: u8, len_bytes: u32) -> Result<()> {
        let len = match len_bytes {
            1 => self.bytes.byte()?.into(),
            4 => u32::from_le_bytes(self.bytes.array()?).into(),
            _ => u64::from_le_bytes(self.bytes.array()?),
        };
        let bytes = self.bytes.bytes(len, &self.values.budget)?;
        let node = match opcode {
            op::BINBYTES | op::SHORT_BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                Node::Bytes(bytes.into())
            }
            _ => match String::from_utf8(bytes) {
                Ok(text) => Node::Text(text.into()),
                Err(error) if matches!(opcode, op::BINSTRING | op::SHORT_BINSTRING) => {
                    Node::Bytes(error.into_bytes().into())
                }
                Err(_) => return Err(self.bytes.problem("a text is not UTF-8")),
            },
        };
        self.push_node(node)
    }

    fn object(&mut self, opcode: u8) -> Result<()> {
        let (class, arguments) = match opcode {
            op::REDUCE | op::NEWOBJ => {
                let arguments = self.pop()?;
                (self.pop()?, arguments)
            }
            op::NEWOBJ_EX => {
                let keywords = self.pop()?;
                let arguments = self.pop()?;
                self.values.budget.keep_all::<Value>(2)?;
                let both = self.values.add(Node::Tuple(vec![arguments, keywords]))?;
                (self.pop()?, both)
            }
            op::INST => {
                let module = self.bytes.text_line(&self.values.budget)?.into();
                let name = self.bytes.text_line(&self.values.budget)?.into();
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
        let made = rebuild::call(self.values, class, arguments, opcode == op::REDUCE);
        let value = made.map_err(|wrong| self.wrong(wrong))?;
        self.push(value)
    }

    fn wrong(&self, wrong: Wrong) -> Error {
        match wrong {
            Wrong::Problem(problem) => self.bytes.problem(problem),
            Wrong::Error(error) => error,
        }
    }

    fn index(&mut self, opcode: u8) -> Result<u32> {
        Ok(match opcode {
            op::BINPUT | op::BINGET => self.bytes.byte()?.into(),
            op::LONG_BINPUT | op::LONG_BINGET => u32::from_le_bytes(self.bytes.array()?),
            _ => {
                let line = self.bytes.text_line(&self.values.budget)?;
                line.parse().map_err(|_| self.bytes.problem("a position is not a number"))?
            }
        })
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.stack.push(value);
        if self.stack.len() > self.highest {
            self.highest = self.stack.len();
            self.values.budget.keep_all::<Value>(1)?;
        }
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<()> {
        let value = self.values.add(node)?;
        self.push(value)
    }

    /// Above the last mark.
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
            Some(mark) => {
                self.values.budget.keep_all::<Value>(self.stack.len() - mark)?;
                Ok(self.stack.split_off(mark))
            }
            None => Err(self.bytes.problem("it takes values from a mark that is not there")),
        }
    }

    fn pairs(&self, items: Vec<Value>) -> Result<Vec<(Value, Value)>> {
        match items.as_chunks::<2>() {
            (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
            _ => Err(self.bytes.problem("a key of a dictionary has no value")),
        }
    }

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

fn dict(items: Vec<(Value, Value)>) -> Node {
    Node::Dict { items, state: Value::None }
}
