//! The header parser and the lookup by name, to be run under callgrind: instruction counts hardly
//! vary from run to run, on a busy machine too, so they show a change that a clock would not.
//!
//! ```text
//! export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --tool=callgrind \
//!     --callgrind-out-file=/dev/null --toggle-collect=*instructions::FUNCTION*"
//! cargo bench -q -p safetensors-core --bench instructions    # prints "Collected : N"
//! ```
//!
//! With Rust 1.95 on x86-64, `parse_header` takes 260,879 instructions, and `look_up` 52,650.
//! Changes elsewhere in the crate change the compiler's inlining, and the counts by up to 10 %.
#![allow(missing_docs, reason = "a program, whose documentation is above")]
#![allow(clippy::unwrap_used, reason = "the header is our own")]

use std::fmt::Write;
use std::hint::black_box;

use safetensors_core::Limits;
use safetensors_core::header::Header;

/// As many tensors as a model of 33 layers has.
const TENSORS: usize = 300;

fn main() {
    let text = header_text();
    let header = parse_header(text.as_bytes());
    let names: Vec<String> = header.iter().map(|tensor| tensor.name().to_owned()).collect();
    assert_eq!(look_up(&header, &names), TENSORS);
    println!("{TENSORS} tensors in {} bytes: parsed once, each looked up once", text.len());
}

/// Counted as parsing.
#[inline(never)]
fn parse_header(text: &[u8]) -> Header {
    Header::parse_json(black_box(text), &Limits::default()).unwrap()
}

/// Counted as looking up: finds every name and returns how many were found.
#[inline(never)]
fn look_up(header: &Header, names: &[String]) -> usize {
    names.iter().filter(|name| black_box(header).get(black_box(name)).is_some()).count()
}

/// A header as the format's reference implementation writes it.
fn header_text() -> String {
    let kinds = [
        ("self_attn.q_proj.weight", "[4096,4096]", 2 * 4096 * 4096),
        ("self_attn.k_proj.weight", "[1024,4096]", 2 * 1024 * 4096),
        ("self_attn.v_proj.weight", "[1024,4096]", 2 * 1024 * 4096),
        ("self_attn.o_proj.weight", "[4096,4096]", 2 * 4096 * 4096),
        ("mlp.gate_proj.weight", "[14336,4096]", 2 * 14336 * 4096),
        ("mlp.up_proj.weight", "[14336,4096]", 2 * 14336 * 4096),
        ("mlp.down_proj.weight", "[4096,14336]", 2 * 14336 * 4096),
        ("input_layernorm.weight", "[4096]", 2 * 4096),
        ("post_attention_layernorm.weight", "[4096]", 2 * 4096),
    ];
    let mut text = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut begin = 0_u64;
    for (i, (name, shape, bytes)) in kinds.iter().cycle().take(TENSORS).enumerate() {
        let (layer, end) = (i / kinds.len(), begin + bytes);
        write!(
            text,
            r#","model.layers.{layer}.{name}":{{"dtype":"BF16","shape":{shape},"data_offsets":[{begin},{end}]}}"#
        )
        .unwrap();
        begin = end;
    }
    text.push('}');
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}
