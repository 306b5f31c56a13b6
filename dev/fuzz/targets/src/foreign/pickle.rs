//! Pickles: a writer of opcodes, and objects as PyTorch saves them, made of parts.

use super::Part;

/// A pickle that is written.
#[derive(Clone, Debug)]
pub(super) struct Pickle(pub(super) Vec<u8>);

/// The memo of the first tensor, of its storage, and of the value that a shared part refers to.
pub(super) const TENSOR: u8 = 0;
const STORAGE: u8 = 1;
const FUNCTION: u8 = 2;
pub(super) const SHARED: u8 = 3;
const OTHER: u8 = 4;
const ARGUMENTS: u8 = 5;

impl Pickle {
    pub(super) fn new() -> Self {
        Self(b"\x80\x02".to_vec())
    }

    pub(super) fn op(&mut self, opcodes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(opcodes);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        match u8::try_from(text.len()) {
            Ok(len) => self.op(&[0x8c, len]),
            Err(_) => self.op(b"X").op(&(text.len() as u32).to_le_bytes()),
        };
        self.op(text.as_bytes())
    }

    pub(super) fn int(&mut self, number: usize) -> &mut Self {
        match u8::try_from(number) {
            Ok(number) => self.op(&[b'K', number]),
            Err(_) => self.op(b"J").op(&(number as i32).to_le_bytes()),
        }
    }

    pub(super) fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    pub(super) fn put(&mut self, memo: u8) -> &mut Self {
        self.op(&[b'q', memo])
    }

    pub(super) fn get(&mut self, memo: u8) -> &mut Self {
        self.op(&[b'h', memo])
    }

    /// Repeats the opcodes `count` times.
    pub(super) fn times(&mut self, count: usize, opcodes: &[u8]) -> &mut Self {
        (0..count).for_each(|_| _ = self.op(opcodes));
        self
    }

    /// Adds a list of `count` values of these opcodes.
    pub(super) fn list(&mut self, count: usize, opcodes: &[u8]) -> &mut Self {
        self.op(b"](").times(count, opcodes).op(b"e")
    }

    /// Pops the last value into the memo of shared parts.
    pub(super) fn share(&mut self) -> &mut Self {
        self.put(SHARED).op(b"0")
    }

    /// A list that has the last value so often.
    pub(super) fn again(&mut self, count: usize) -> &mut Self {
        self.share().list(count, &[b'h', SHARED])
    }

    /// So many entries of a dictionary with the value of a memo.
    pub(super) fn named(&mut self, count: usize, memo: u8) -> &mut Self {
        (0..count).for_each(|number| _ = self.text(&format!("z{number:x}")).get(memo));
        self
    }

    /// A tuple of numbers.
    pub(super) fn numbers(&mut self, numbers: &[usize]) -> &mut Self {
        self.op(b"(");
        numbers.iter().for_each(|&number| _ = self.int(number));
        self.op(b"t")
    }

    /// An object of a class with these fields, which `fields` writes as keys and values.
    pub(super) fn object(
        &mut self,
        module: &str,
        name: &str,
        fields: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.global(module, name).op(b")\x81}(");
        fields(self);
        self.op(b"ub")
    }

    /// A storage of F32 with this key.
    pub(super) fn storage(&mut self, key: &str, elements: usize) -> &mut Self {
        self.op(b"(").text("storage").global("torch", "FloatStorage").text(key).text("cpu");
        self.int(elements).op(b"tQ")
    }

    /// Pops everything that later tensors share: a storage, the function that makes tensors, and a
    /// one-element tensor, each in a memo.
    pub(super) fn prelude(&mut self, key: &str, elements: usize) -> &mut Self {
        self.storage(key, elements).put(STORAGE).op(b"0");
        self.global("torch._utils", "_rebuild_tensor_v2").put(FUNCTION).op(b"0");
        self.tensor(0).put(TENSOR).op(b"0")
    }

    /// Adds a tensor with one element of the storage.
    pub(super) fn tensor(&mut self, offset: usize) -> &mut Self {
        self.get(FUNCTION).op(b"(").get(STORAGE).int(offset);
        self.op(b"K\x01\x85K\x01\x85\x89}tR")
    }

    /// A tensor of this many elements of the storage.
    pub(super) fn row(&mut self, elements: usize) -> &mut Self {
        self.get(FUNCTION).op(b"(").get(STORAGE).op(b"K\0").int(elements);
        self.op(b"\x85K\x01\x85\x89}tR")
    }

    /// A NumPy array of objects without its state.
    fn array(&mut self) -> &mut Self {
        self.global("numpy.core.multiarray", "_reconstruct").op(b"(");
        self.global("numpy", "ndarray").op(b"K\0\x85").op(b"C\x01btR")
    }

    /// Returns the type of an array.
    fn descr(&mut self, name: &str, order: &str) -> &mut Self {
        self.global("numpy", "dtype").op(b"(").text(name).op(b"\x89\x88tR(K\x03");
        self.text(order).op(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb")
    }
}

/// The parts of the object in any file of PyTorch.
pub(super) const REPEATED: &str = "tensors, aliases, texts, numbers, lists, dicts, tuples, arrays, \
    bytes, optimizers, objects, classes, memo, cycles";
pub(super) const SHARED_PARTS: &str = "kept name, one name, one dict, one list, doubled, \
    one key of a storage, one array of objects, one name of settings, one setting, \
    one name of a class, one shape, one text as bytes";

/// The names of a part for tensors in a dictionary.
fn entries(pickle: &mut Pickle, part: Part, mut value: impl FnMut(&mut Pickle, usize)) {
    pickle.op(b"}(");
    for (number, name) in part.names().enumerate() {
        pickle.text(&name);
        value(pickle, number);
    }
    pickle.op(b"u");
}

/// Makes a pickle of a dictionary with these parts, with tensors in the storage of this key.
pub(super) fn object(parts: &[Part], key: &str, elements: usize) -> Vec<u8> {
    let mut pickle = Pickle::new();
    pickle.prelude(key, elements).op(b"}(");
    for (number, part) in parts.iter().enumerate() {
        pickle.text(&format!("{number}"));
        write(&mut pickle, *part);
    }
    pickle.op(b"u.");
    pickle.0
}

/// One value with a part.
pub(super) fn write(pickle: &mut Pickle, part: Part) {
    let Part { what, count, len } = part;
    match what {
        "tensors" => entries(pickle, part, |pickle, number| _ = pickle.tensor(number)),
        "aliases" => entries(pickle, part, |pickle, _| _ = pickle.get(TENSOR)),
        "texts" => entries(pickle, part, |pickle, _| _ = pickle.text("text")),
        "optimizers" => entries(pickle, part, |pickle, _| {
            pickle.op(b"}(").text("state").op(b"}").text("param_groups").op(b"]}a").op(b"u");
        }),
        "objects" => entries(pickle, part, |pickle, _| {
            pickle.global("a", "B").op(b"(").get(TENSOR).op(b"tR");
        }),
        "bytes" => entries(pickle, part, |pickle, _| _ = pickle.op(b"C\x03abc")),
        "arrays" => entries(pickle, part, |pickle, _| {
            pickle.array().op(b"(K\x01K\x03\x85").descr("f4", "<").op(b"\x89C\x0c123456789012tb");
        }),
        "numbers" => _ = pickle.list(count, b"K\x01"),
        "lists" => _ = pickle.times(count, b"](").get(TENSOR).times(count, b"e"),
        "tuples" => _ = pickle.get(TENSOR).times(count, b"\x85"),
        "dicts" => {
            part.names().for_each(|name| _ = pickle.op(b"}").text(&name));
            pickle.get(TENSOR).times(count, b"s");
        }
        "classes" => {
            pickle.op(b"](");
            part.names().for_each(|name| _ = pickle.global("m", &name));
            pickle.op(b"e");
        }
        "memo" => {
            pickle.op(b"N");
            for number in 0..count {
                pickle.op(b"r").op(&(number as u32 + 256).to_le_bytes());
            }
        }
        "cycles" => {
            pickle.op(b"}").put(SHARED).op(b"(");
            part.names().for_each(|name| _ = pickle.text(&name).get(SHARED));
            pickle.op(b"u");
        }
        "kept name" => {
            pickle.op(b"}(").text(&part.text()).get(TENSOR).named(count, TENSOR).op(b"u");
        }
        "one name" => _ = pickle.text(&part.text()).share().list(count, b"}h\x03h\0s"),
        "one dict" => {
            write(pickle, Part { what: "aliases", count: len / 8, len: 1 });
            pickle.again(count);
        }
        "one list" => _ = pickle.list(len / 2, b"K\x01").again(count),
        "doubled" => {
            pickle.get(TENSOR).share();
            // As many ways to the tensor as the part counts, or more than there are atoms.
            let depth = if count < 1000 { count.checked_ilog2().unwrap_or(0) } else { 90 };
            (0..depth).for_each(|_| _ = pickle.op(b"](h\x03h\x03e").share());
            pickle.get(SHARED);
        }
        "one key of a storage" => {
            pickle.op(b"(").text("storage").global("torch", "FloatStorage").text(&part.text());
            pickle.text("cpu").int(1).op(b"t").share().times(count, b"h\x03Q0").op(b"N");
        }
        "one array of objects" => {
            pickle.list(len / 2, b"N").share().op(b"(K\x01").int(len / 2).op(b"\x85");
            pickle.descr("O8", "|").op(b"\x89").get(SHARED).op(b"t").share();
            pickle.global("numpy.core.multiarray", "_reconstruct").put(OTHER).op(b"0(");
            pickle.global("numpy", "ndarray").op(b"K\0\x85C\x01bt").put(ARGUMENTS).op(b"0");
            pickle.times(count, b"h\x04h\x05Rh\x03b0").op(b"N");
        }
        "one name of settings" => {
            pickle.op(b"}(").text("state").op(b"}").text("param_groups").op(b"]u").share();
            pickle.op(b"}").text(&part.text()).list(count, b"h\x03").op(b"s");
        }
        "one setting" => {
            pickle.op(b"}").text("lr").text(&part.text().replace("x", "\u{1}")).op(b"s").share();
            pickle.op(b"}(").text("state").op(b"}").text("param_groups");
            pickle.list(count, b"h\x03").op(b"u");
        }
        "one name of a class" => {
            pickle.text(&part.text()).share().list(count, b"h\x03h\x03\x93");
        }
        "one shape" => {
            pickle.op(b"(").times(len / 2, b"K\x01").op(b"t").share();
            pickle.list(count, b"h\x02(h\x01K\0h\x03h\x03\x89}tR");
        }
        "one text as bytes" => {
            pickle.global("_codecs", "encode").put(OTHER).op(b"0(");
            pickle.text(&part.text()).text("latin1").op(b"t").share();
            pickle.list(count, b"h\x04h\x03R");
        }
        other => panic!("{other} is no part of a pickle"),
    }
}
