//! The errors of the macro: their text, and that each names its field.

use proc_macro2::TokenTree;
use syn::parse_quote;

use super::*;

fn messages(input: &DeriveInput) -> Vec<String> {
    match expand(input, "") {
        Ok(tokens) => panic!("accepted: {tokens}"),
        Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
    }
}

fn code(input: &DeriveInput) -> String {
    expand(input, "").unwrap().to_string().replace(' ', "")
}

#[test]
fn only_structs_with_named_fields_are_accepted() {
    let inputs: [(DeriveInput, &str); 4] = [
        (
            parse_quote!(
                struct S(Array1<f32>);
            ),
            "a tuple struct",
        ),
        (
            parse_quote!(
                struct S;
            ),
            "a struct without fields",
        ),
        (
            parse_quote!(
                enum S {
                    A { w: Array1<f32> },
                }
            ),
            "an enum",
        ),
        (parse_quote!(union S { w: u32 }), "a union"),
    ];
    for (input, found) in inputs {
        let expected = format!("NamedArrays needs a struct with named fields, found {found}");
        assert_eq!(messages(&input), [expected]);
    }
}

#[test]
fn a_type_that_cannot_be_stored_names_its_field() {
    let found = messages(&parse_quote! {
        struct S<'a> {
            fine: Array1<f32>,
            title: &'a str,
            pair: (f32, f32),
            fixed: [f32; 3],
            reference: &'a Array1<f32>,
            slice: &'a [f32],
            callback: fn(f32) -> f32,
            r#type: (*const f32),
            #[safetensors(skip)]
            skipped: (f32, f32),
        }
    });
    let expected = [
        "field `pair`: a tuple cannot be stored; use a struct that derives NamedArrays",
        "field `fixed`: a Rust array cannot be stored; use an Array of ndarray",
        "field `reference`: a reference cannot be stored; use an ArrayView",
        "field `slice`: a reference cannot be stored; use an ArrayView",
        "field `callback`: a function cannot be stored; use #[safetensors(skip)]",
        "field `type`: a pointer cannot be stored; use #[safetensors(skip)]",
    ];
    assert_eq!(found, expected);
}

#[test]
fn wrong_attributes_name_their_field() {
    let found = messages(&parse_quote! {
        #[safetensors(prefix = "model")]
        struct S {
            #[safetensors(renam = "x")]
            a: Array1<f32>,
            #[safetensors(rename = "")]
            b: Array1<f32>,
            #[safetensors(rename = "__metadata__")]
            c: Array1<f32>,
            #[safetensors(skip, default)]
            d: Array1<f32>,
            #[safetensors(rename = "x", skip)]
            e: Array1<f32>,
            #[safetensors(default)]
            #[safetensors(default)]
            f: Array1<f32>,
            #[safetensors(rename = "x", rename = "x")]
            g: Array1<f32>,
            #[safetensors(serde::skip)]
            h: Array1<f32>,
            #[safetensors(units = "m", skip)]
            i: Array1<f32>,
            #[safetensors(dimensions("t", "x", "t"))]
            j: Array3<f32>,
            #[other(renam = "x")]
            #[safetensors(dimensions("t"), units = "m")]
            fine: Array1<f32>,
        }
    });
    let expected = [
        "unknown attribute `prefix`; a struct can have crate and ignore_others",
        "field `a`: unknown attribute `renam`; a field can have rename, skip, default, \
         dimensions and units",
        "field `b`: the name is empty",
        "field `c`: the name __metadata__ is reserved by the format",
        "field `d`: a skipped field can have no other attribute",
        "field `e`: a skipped field can have no other attribute",
        "field `f`: duplicate attribute `default`",
        "field `g`: duplicate attribute `rename`",
        "field `h`: unknown attribute `serde::skip`; a field can have rename, skip, default, \
         dimensions and units",
        "field `i`: a skipped field can have no other attribute",
        "field `j`: two dimensions have the same name",
    ];
    assert_eq!(found, expected);
    // The grammar of attributes refuses these. The position is still the field's.
    for (input, expected) in [
        (
            parse_quote!(
                struct S {
                    #[safetensors(rename)]
                    a: u8,
                }
            ),
            "expected `=`",
        ),
        (
            parse_quote!(
                struct S {
                    #[safetensors(rename = 1)]
                    a: u8,
                }
            ),
            "expected string literal",
        ),
        (
            parse_quote!(
                #[safetensors(crate = "1")]
                struct S {
                    a: u8,
                }
            ),
            "expected identifier",
        ),
    ] {
        assert_eq!(messages(&input), [expected]);
    }
}

#[test]
fn fields_of_the_same_name_are_refused() {
    let found = messages(&parse_quote! {
        struct S {
            weight: Array1<f32>,
            #[safetensors(rename = "weight")]
            bias: Array1<f32>,
            r#type: u8,
            #[safetensors(rename = "type")]
            kind: u8,
        }
    });
    let expected = [
        r#"fields `weight` and `bias` have the same name "weight""#,
        r#"fields `type` and `kind` have the same name "type""#,
    ];
    assert_eq!(found, expected);
    // A skipped field has no name, and names can change places.
    code(&parse_quote! {
        struct S {
            #[safetensors(rename = "b")]
            a: u8,
            #[safetensors(rename = "a")]
            b: u8,
            #[safetensors(skip)]
            c: u8,
            #[safetensors(rename = "c")]
            d: u8,
        }
    });
}

#[test]
fn only_types_that_depend_on_parameters_get_bounds() {
    let found = code(&parse_quote! {
        struct S<'a, A: Copy, D, const N: usize> {
            generic: Option<Array<A, D>>,
            half: ndarray::ArrayView2<'a, A>,
            other: nd::ArrayD<f64>,
            any: Option<A>,
            concrete: Array1<f32>,
            #[safetensors(default)]
            nested: Vec<Inner<'a, N>>,
            #[safetensors(skip)]
            marker: PhantomData<A>,
        }
    });
    for bound in [
        "A:__fields::ArrayElement",
        "D:__fields::Dimension",
        "Vec<Inner<'a,N>>:__fields::SaveField",
        "Vec<Inner<'a,N>>:__fields::LoadField<'__file>",
        "Vec<Inner<'a,N>>:::core::default::Default",
        "PhantomData<A>:::core::default::Default",
        "Option<A>:__fields::SaveField",
        "'__file:'a",
    ] {
        assert!(found.contains(bound), "{bound} in {found}");
    }
    for bound in ["Array1<f32>:__", "PhantomData<A>:__", "Array<A,D>:", "f64:__"] {
        assert!(!found.contains(bound), "{bound} in {found}");
    }
    assert!(found.contains("use::safetensors_ndarray::fieldsas__fields"), "{found}");
    let elsewhere = code(&parse_quote! {
        #[safetensors(crate = "safetensors_bridge::ndarray")]
        struct S { w: Array1<f32> }
    });
    assert!(elsewhere.contains("usesafetensors_bridge::ndarray::fieldsas__fields"), "{elsewhere}");
}

#[test]
fn the_path_of_the_crate_follows_the_dependency() {
    let input: DeriveInput = parse_quote!(
        struct S {
            w: Array1<f32>,
        }
    );
    const OURS: &str = "::safetensors_ndarray::fieldsas";
    const FACADE: &str = "::safetensors_bridge::ndarray::fieldsas";
    for (manifest, path) in [
        // Another build system.
        ("", OURS),
        ("[package]\nname = \"safetensors-ndarray\"", OURS),
        ("[dependencies]\nsafetensors-ndarray = \"0.1\"\nsafetensors-bridge = \"0.1\"", OURS),
        ("[dev-dependencies.safetensors-ndarray]\nversion = \"0.1\"", OURS),
        ("[dependencies]\n\"safetensors-ndarray\".workspace = true", OURS),
        ("[dependencies]\nsafetensors_ndarray = { package = \"other\" }", OURS),
        ("[dependencies]\nsafetensors-bridge.workspace = true", FACADE),
        ("[target.'cfg(unix)'.dependencies.safetensors-bridge]", FACADE),
        ("# safetensors-ndarray\n[dependencies]\nsafetensors-bridge = { path = \"b\" }", FACADE),
    ] {
        let found = expand(&input, manifest).unwrap().to_string().replace(' ', "");
        assert!(found.contains(path), "{manifest}: {found}");
    }
    for manifest in [
        "[dependencies]\nnd = { package = \"safetensors-ndarray\", version = \"0.1\" }",
        "[dependencies]\nndarray = \"0.17\"",
        "[package]\nname = \"my-safetensors-bridge\"",
    ] {
        let error = expand(&input, manifest).unwrap_err().to_string();
        assert!(error.ends_with("as in #[safetensors(crate = \"other::ndarray\")]"), "{error}");
    }
}

/// Returns the lines that the errors for a source are at, counted from 1.
fn lines_of_errors(source: &str) -> Vec<usize> {
    match expand(&syn::parse_str(source).unwrap(), "") {
        Ok(tokens) => panic!("accepted: {tokens}"),
        Err(error) => error.into_iter().map(|error| error.span().start().line).collect(),
    }
}

#[test]
fn errors_are_at_their_fields() {
    let lines = lines_of_errors(
        "struct S<'a> {
            fine: Array1<f32>,
            pair: (f32, f32),
            #[safetensors(renam = \"x\")]
            a: Array1<f32>,
            #[safetensors(rename = \"\")]
            b: Array1<f32>,
            #[safetensors(rename = \"fine\")]
            c: Array1<f32>,
            slice: &'a [f32],
        }",
    );
    assert_eq!(lines, [3, 4, 6, 8, 10]);
}

// The compiler reports a missing trait at the type in the code of the macro, so its tokens must
// have the position of their field.
#[test]
fn the_compilers_errors_are_at_the_type_of_the_field() {
    fn lines(code: TokenStream, name: &str) -> Vec<usize> {
        let lines = code.into_iter().flat_map(|token| match token {
            TokenTree::Group(group) => lines(group.stream(), name),
            TokenTree::Ident(ident) if ident == name => vec![ident.span().start().line],
            _ => vec![],
        });
        lines.collect()
    }

    let source = "struct S {
            column: Vec<Number>,
            table:
                Table<String>,
            twice: Option<Option<Inner>>,
        }";
    let code = expand(&syn::parse_str(source).unwrap(), "").unwrap();
    for (name, line) in [("Number", 2), ("Table", 4), ("Inner", 5)] {
        let found = lines(code.clone(), name);
        // It is at least saved, compared and loaded.
        assert!(found.len() >= 3 && found.iter().all(|&at| at == line), "{name}: {found:?}");
    }
}
