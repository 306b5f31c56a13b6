//! Tells the command its target and its features, which `safetensors --version` prints.

use std::env;

fn main() {
    // Without this line, the script would run again whenever a file of the package changes.
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env=SAFETENSORS_TARGET={target}");
    println!("cargo::rustc-env=SAFETENSORS_FEATURES={}", features());
    // The command that the tests build has 90 MB, and they start it thousands of times. Half of the
    // time to start it goes to relocations, which a program at a fixed address does not need.
    let is = |key: &str, value: &str| env::var(key).is_ok_and(|found| found == value);
    let is_static = env::var("CARGO_CFG_TARGET_FEATURE").is_ok_and(|it| it.contains("crt-static"));
    if is("PROFILE", "debug")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && !is_static
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}

/// The features that are switched on, in the order of the alphabet. Cargo passes each as a
/// variable, such as `CARGO_FEATURE_REMOTE`.
fn features() -> String {
    let names = env::vars().filter_map(|(key, _)| {
        let name = key.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-");
        (name != "default").then_some(name)
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
