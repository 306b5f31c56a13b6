//! Parses, slices, converts and serialises on a Cortex-M4 without a system. A panic ends the
//! program with a failure.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;

use cortex_m_rt::entry;
use safetensors_core::{
    ConvertOptions, Dtype, Result, SafeTensors, SaveOptions, TensorBuf, TensorView, serialize,
};
use semihosting::{println, process};

/// 256 KiB for everything that is allocated.
#[global_allocator]
static HEAP: emballoc::Allocator<{ 1 << 18 }> = emballoc::Allocator::new();

/// A file that the Python library has written.
static FILE: &[u8] =
    include_bytes!("../../../../safetensors-burn/tests/fixtures/linear.safetensors");

#[entry]
fn main() -> ! {
    let checks: [(&str, fn() -> Result<()>); 4] = [
        ("a file of Python is read, and serialised to the same bytes", same_bytes),
        ("damaged files are errors", damaged),
        ("every code of F8_E4M3 has its value", codes),
        ("BF16 is rounded to even, and slices are parts", rounded),
    ];
    for (name, check) in checks {
        if let Err(error) = check() {
            println!("{name}: {error}");
            process::exit(1);
        }
        println!("{name}: ok");
    }
    process::exit(0)
}

fn same_bytes() -> Result<()> {
    let file = SafeTensors::parse(FILE)?;
    assert_eq!(file.metadata()["format"], "pt");
    let options = SaveOptions::new().metadata([("format", "pt")]);
    assert!(serialize(file.views(), &options)? == FILE);
    let values = |name| TensorBuf::from_view(&file.view(name)?)?.into_vec::<f32>();
    let (input, weight) = (values("input")?, values("layer.weight")?);
    let (bias, output) = (values("layer.bias")?, values("output")?);
    for (i, &found) in output.iter().enumerate() {
        let (row, column) = (i / 5, i % 5);
        let product = |k: usize| input[3 * row + k] * weight[3 * column + k];
        let expected = bias[column] + product(0) + product(1) + product(2);
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }
    Ok(())
}

fn damaged() -> Result<()> {
    for len in 0..FILE.len() {
        assert!(SafeTensors::parse(&FILE[..len]).is_err(), "{len} bytes are no file");
    }
    let mut file = FILE.to_vec();
    for at in 0..SafeTensors::parse(FILE)?.header().data_start() as usize {
        for byte in [0, b'"', b'9', b'[', 0xff] {
            let old = core::mem::replace(&mut file[at], byte);
            // Some changes give another file that is valid.
            drop(SafeTensors::parse(&file));
            file[at] = old;
        }
    }
    let huge = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    assert!(SafeTensors::parse(&huge).is_err());
    Ok(())
}

/// Four bits of exponent, three of mantissa, no infinity.
fn codes() -> Result<()> {
    let codes: Vec<u8> = (0..=255).collect();
    let view = TensorView::new(Dtype::F8_E4M3, &[256], &codes)?;
    let values = view.convert(Dtype::F32, &ConvertOptions::new())?.into_vec::<f32>()?;
    for (&code, &found) in codes.iter().zip(&values) {
        let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
        let mut expected = if exponent == 0 { mantissa } else { 8.0 + mantissa } / 512.0;
        for _ in 1..exponent {
            expected *= 2.0;
        }
        if code & 0x80 != 0 {
            expected = -expected;
        }
        assert!(found == expected || (code & 0x7f == 0x7f && found.is_nan()), "{code}: {found}");
    }
    Ok(())
}

fn rounded() -> Result<()> {
    let values: Vec<f32> =
        (0..4096_u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x1801)).collect();
    let view = TensorView::from_slice(&[64, 64], &values)?;
    let converted = view.convert(Dtype::BF16, &ConvertOptions::new())?;
    for (value, bytes) in values.iter().zip(converted.bytes().chunks_exact(2)) {
        let bits = value.to_bits();
        let expected = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        assert_eq!(u16::from_le_bytes([bytes[0], bytes[1]]), expected as u16, "{value}");
    }
    let column = view.slice((.., 7))?.to_buf()?;
    assert!(column.as_slice::<f32>()?.iter().eq(values.iter().skip(7).step_by(64)));
    Ok(())
}
