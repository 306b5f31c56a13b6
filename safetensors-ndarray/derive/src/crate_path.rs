//! Finds `safetensors-ndarray` for the code of the macro.

use proc_macro2::TokenStream;
use quote::quote;

/// Returns the manifest of the package that cargo compiles, or nothing.
pub(crate) fn manifest() -> String {
    let path = std::env::var_os("CARGO_MANIFEST_PATH").unwrap_or_default();
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the path of `safetensors-ndarray`, or of the module of its facade, by the manifest.
pub(crate) fn find(manifest: &str) -> Option<TokenStream> {
    if manifest.is_empty() || names(manifest, "safetensors-ndarray") {
        return Some(quote!(::safetensors_ndarray));
    }
    names(manifest, "safetensors-bridge").then(|| quote!(::safetensors_bridge::ndarray))
}

/// Returns `true` for the manifest of a package or of a dependent one.
fn names(manifest: &str, package: &str) -> bool {
    manifest.lines().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_')));
        let words = words.filter(|word| !word.is_empty());
        let mut words = words.map(|word| word.replace('_', "-"));
        match words.next() {
            // A separate table: `[dependencies.safetensors-ndarray]`.
            Some(_) if line.trim_start().starts_with('[') => {
                words.next_back().as_deref() == Some(package)
            }
            Some(key) if key == "name" => words.next().as_deref() == Some(package),
            key => key.as_deref() == Some(package),
        }
    })
}
