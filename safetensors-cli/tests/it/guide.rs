//! The guide's chapter for operators: each of its commands prints the chapter's output.

use std::process::Command;

use crate::fixtures::*;

const CHAPTER: &str = "../src/guide/operator.rs";

/// Starts a new block of output, and a command in it.
const PROMPT: &str = "$ ";

/// Returns the output of a shell for a line of the chapter, errors included.
fn run(dir: &Path, line: &str) -> String {
    let command = Path::new(env!("CARGO_BIN_EXE_safetensors"));
    let mut path = command.parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let line = format!("exec 2>&1; {line}");
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &line]).env("PATH", path).env("COLUMNS", "100").current_dir(dir);
    let output = output.output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn the_operators_chapter_shows_the_output_of_its_commands() {
    let dir = temp_dir();
    let values: Vec<f32> = (0..32_u8).map(|i| f32::from(i) / 8.0).collect();
    let options = quick().metadata([("format", "pt")]);
    let embed = array(&[8, 4], &values);
    let head = array(&[4, 4], &values[..16]);
    let tensors = [("embed.weight", embed), ("head.weight", head)];
    save(dir.at("model.safetensors"), tensors, &options).unwrap();

    let chapter = fs::read_to_string(CHAPTER).unwrap();
    let mut printed = String::new();
    let mut in_block = false;
    for line in chapter.lines() {
        let text = line.strip_prefix("//!").unwrap_or(line);
        let text = text.strip_prefix(' ').unwrap_or(text);
        in_block = if in_block { text != "```" } else { text == "```console" };
        // The output of a command is below it, and is printed again.
        let is_output = in_block && text != "```console" && !text.starts_with("cargo ");
        if !is_output || text.starts_with(PROMPT) {
            printed += &format!("{line}\n");
        }
        if let (true, Some(command)) = (in_block, text.strip_prefix(PROMPT)) {
            for line in run(dir.path(), command).lines() {
                printed += &format!("//! {line}\n").replace("//! \n", "//!\n");
            }
        }
    }
    if std::env::var_os("UPDATE_MANUAL").is_some() {
        return fs::write(CHAPTER, printed).unwrap();
    }
    assert!(printed == chapter, "UPDATE_MANUAL=1 writes the chapter anew:\n{printed}");
}
