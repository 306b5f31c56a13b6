//! `safetensors completions`: each shell gets a script.

use crate::fixtures::*;

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = contains("inspect").and(contains("safetensors"));
        safetensors().args(["completions", shell]).assert().success().stdout(script).stderr("");
    }
    let bash = safetensors().args(["completions", "bash"]).output().unwrap();
    for option in ["--recursive", "--depth", "--quiet", "--no-pager"] {
        assert!(text(&bash.stdout).contains(option), "{option}");
    }
    safetensors().args(["completions", "dos"]).assert().code(2);
}
