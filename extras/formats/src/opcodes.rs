//! The opcodes of pickles and their arguments, named as in Python's `pickle` and `pickletools`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Nothing,
    Bytes(u64),
    /// After a length of this many bytes.
    Text(u32),
    /// One, or two.
    Line,
}

macro_rules! opcodes {
    ($($name:ident = $code:literal: $argument:expr;)*) => {
        $(pub(crate) const $name: u8 = $code;)*

        pub(crate) fn argument(opcode: u8) -> Option<Argument> {
            use Argument::{Bytes, Line, Nothing, Text};
            match opcode {
                $($name => Some($argument),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    ADDITEMS = 0x90: Nothing;
    APPEND = b'a': Nothing;
    APPENDS = b'e': Nothing;
    BINBYTES = b'B': Text(4);
    BINBYTES8 = 0x8e: Text(8);
    BINFLOAT = b'G': Bytes(8);
    BINGET = b'h': Bytes(1);
    BININT = b'J': Bytes(4);
    BININT1 = b'K': Bytes(1);
    BININT2 = b'M': Bytes(2);
    BINPERSID = b'Q': Nothing;
    BINPUT = b'q': Bytes(1);
    BINSTRING = b'T': Text(4);
    BINUNICODE = b'X': Text(4);
    BINUNICODE8 = 0x8d: Text(8);
    BUILD = b'b': Nothing;
    BYTEARRAY8 = 0x96: Text(8);
    DICT = b'd': Nothing;
    DUP = b'2': Nothing;
    EMPTY_DICT = b'}': Nothing;
    EMPTY_LIST = b']': Nothing;
    EMPTY_SET = 0x8f: Nothing;
    EMPTY_TUPLE = b')': Nothing;
    EXT1 = 0x82: Bytes(1);
    EXT2 = 0x83: Bytes(2);
    EXT4 = 0x84: Bytes(4);
    FLOAT = b'F': Line;
    FRAME = 0x95: Bytes(8);
    FROZENSET = 0x91: Nothing;
    GET = b'g': Line;
    GLOBAL = b'c': Line;
    INST = b'i': Line;
    INT = b'I': Line;
    LIST = b'l': Nothing;
    LONG = b'L': Line;
    LONG1 = 0x8a: Text(1);
    LONG4 = 0x8b: Text(4);
    LONG_BINGET = b'j': Bytes(4);
    LONG_BINPUT = b'r': Bytes(4);
    MARK = b'(': Nothing;
    MEMOIZE = 0x94: Nothing;
    NEWFALSE = 0x89: Nothing;
    NEWOBJ = 0x81: Nothing;
    NEWOBJ_EX = 0x92: Nothing;
    NEWTRUE = 0x88: Nothing;
    NEXT_BUFFER = 0x97: Nothing;
    NONE = b'N': Nothing;
    OBJ = b'o': Nothing;
    PERSID = b'P': Line;
    POP = b'0': Nothing;
    POP_MARK = b'1': Nothing;
    PROTO = 0x80: Bytes(1);
    PUT = b'p': Line;
    READONLY_BUFFER = 0x98: Nothing;
    REDUCE = b'R': Nothing;
    SETITEM = b's': Nothing;
    SETITEMS = b'u': Nothing;
    SHORT_BINBYTES = b'C': Text(1);
    SHORT_BINSTRING = b'U': Text(1);
    SHORT_BINUNICODE = 0x8c: Text(1);
    STACK_GLOBAL = 0x93: Nothing;
    STOP = b'.': Nothing;
    STRING = b'S': Line;
    TUPLE = b't': Nothing;
    TUPLE1 = 0x85: Nothing;
    TUPLE2 = 0x86: Nothing;
    TUPLE3 = 0x87: Nothing;
    UNICODE = b'V': Line;
}
