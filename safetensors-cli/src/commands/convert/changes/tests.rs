//! Options as they are parsed, and their effect on tensors.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    changes: Changes,
}

fn parsed(args: &str) -> Result<Changes, clap::Error> {
    Ok(Cli::try_parse_from(format!("x {args}").split(' '))?.changes)
}

fn changes(args: &str) -> Changes {
    parsed(args).unwrap()
}

#[test]
fn the_first_cast_that_matches_goes_before_the_dtype() {
    let changes = changes("--dtype bf16 --cast a.*=f32 --cast *.b=keep --cast n=F64");
    let change = changes.prepare().unwrap();
    let cast = |name, from| change.cast(name, from, Kind::Plain);
    assert_eq!(cast("w", Dtype::F32), Some(Dtype::BF16));
    assert_eq!(cast("w", Dtype::I64), None);
    assert_eq!(cast("a.b", Dtype::F16), Some(Dtype::F32));
    assert_eq!(cast("c.b", Dtype::F32), Some(Dtype::F32));
    assert_eq!(cast("n", Dtype::I64), Some(Dtype::F64));
    // An alias follows its tensor unless --cast names it.
    for kind in [Kind::Alias, Kind::Kept] {
        assert_eq!(change.cast("w", Dtype::F32, kind), None);
        assert_eq!(change.cast("c.b", Dtype::F32, kind), Some(Dtype::F32));
    }
}

#[test]
fn quantised_tensors_have_a_dtype_of_their_own_unless_another_is_asked_for() {
    let both = changes("--dequantize f16 --cast n=f32");
    let change = both.prepare().unwrap();
    assert_eq!(change.cast("w", Dtype::F32, Kind::Quantised), Some(Dtype::F16));
    assert_eq!(change.cast("w", Dtype::F32, Kind::Plain), None);
    assert_eq!(change.cast("n", Dtype::F32, Kind::Quantised), Some(Dtype::F32));
    let all = changes("--dequantize f32 --dtype bf16");
    assert_eq!(all.prepare().unwrap().cast("w", Dtype::F32, Kind::Quantised), Some(Dtype::BF16));
}

#[test]
fn names_are_chosen_and_changed() {
    let changes = changes(r"-f m.* --drop *.bias --rename ^m\.(\d+) layer_$1 --prefix p.");
    let change = changes.prepare().unwrap();
    assert!(change.takes("m.1.weight") && !change.takes("m.1.bias") && !change.takes("x"));
    assert_eq!(change.rename("m.12.weight"), "p.layer_12.weight");
}

#[test]
fn dtypes_and_schemes_have_the_names_that_people_know() {
    for (word, dtype) in [
        ("bfloat16", Dtype::BF16),
        ("torch.bfloat16", Dtype::BF16),
        ("Half", Dtype::F16),
        ("FLOAT32", Dtype::F32),
        ("fp8", Dtype::F8_E4M3),
    ] {
        let all = changes(&format!("--dtype {word} --dequantize {word} --cast a={word}"));
        assert_eq!((all.dtype, all.dequantize), (Some(dtype), Some(dtype)), "{word}");
        assert_eq!(all.casts[0].to, To::Dtype(dtype), "{word}");
    }
    assert_eq!(changes("--quantize fp8 --cast a=QUANTIZE").casts[0].to, To::Quantised);
    for (word, scheme) in [
        ("fp8", "fp8-block128"),
        ("INT8", "int8-channel"),
        ("FP8-tensor", "fp8-tensor"),
        ("Q8_0", "q8_0"),
        ("bfloat16", "bf16"),
        ("torch.float32", "f32"),
    ] {
        let found = changes(&format!("--quantize {word}")).quantize.unwrap();
        assert_eq!(found.to_string(), scheme, "{word}");
    }
}

#[test]
fn an_unknown_word_is_an_error_with_six_dtypes_and_the_help_lists_all() {
    for args in ["--dtype bf17", "--dequantize bf17", "--cast a=bf17"] {
        let error = parsed(args).err().unwrap().to_string();
        let expected = "unknown dtype \"bf17\"; there are BF16, F16, F32, F64, F8_E4M3, I64 and \
                        16 more; `safetensors convert --help` lists all";
        assert!(error.contains(expected), "{error}");
    }
    for args in ["--quantize fp9", "--quantize f64", "--quantize u8"] {
        let error = parsed(args).err().unwrap().to_string();
        assert!(error.contains("expected fp8-block128, fp8-channel,"), "{error}");
    }
    let help = <Cli as clap::CommandFactory>::command().render_long_help().to_string();
    let words: Vec<_> = help.split([' ', '\n', ',', '(', ')']).collect();
    for dtype in Dtype::ALL {
        assert!(words.contains(&&*dtype.name().to_lowercase()), "{dtype}");
    }
}

#[test]
fn names_may_start_with_a_hyphen() {
    let changes = changes("--rename w -y --rename -z a --prefix -p");
    let change = changes.prepare().unwrap();
    assert_eq!((change.rename("w"), change.rename("-z")), ("-p-y".to_owned(), "-pa".to_owned()));
}

#[test]
fn invalid_options_are_refused() {
    for args in ["--dtype bf17", "--cast x", "--cast x=y", "--all", "--rename x", "--drop ["] {
        assert!(parsed(args).is_err(), "{args}");
    }
    assert!(changes("--rename ( x").prepare().is_err());
}
