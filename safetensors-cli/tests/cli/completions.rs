//! `safetensors completions`: each shell gets a script.

use predicates::prelude::*;

use crate::fixtures::*;

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script =
            predicate::str::contains("inspect").and(predicate::str::contains("safetensors"));
        safetensors().args(["completions", shell]).assert().success().stdout(script).stderr("");
    }
    safetensors().args(["completions", "dos"]).assert().code(2);
}
