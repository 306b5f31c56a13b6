//! `safetensors browse`, in a pseudo-terminal.

use std::os::unix::process::ExitStatusExt;

use crate::fixtures::*;
use crate::pty::Session;

const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";
const RIGHT: &str = "\x1b[C";
const ESC: &str = "\x1b";
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

const SCREEN_1: &str = "\
▾ m.safetensors                    4 tensors    1.0 kB │ m.safetensors
    embed.weight                  F32 [8, 8]     256 B │
  ▸ layers                         3 tensors     768 B │ tensors     4
                                                       │ parameters  256
                                                       │ size        1.0 kB
                                                       │
                                                       │ Dtypes
                                                       │ F32         4 tensors, 1.0 kB
                                                       │
                                                       │ Metadata (1)
                                                       │ format
                                                       │   pt
                                                       │
                                                       │ Files (1)
                                                       │ m.safetensors
↑↓ move   →← open, close   / search   Tab details   ? keys   q quit
";

/// Two layers and an embedding; the values of a layer go from -1 to 1.
fn model(dir: &Path) -> PathBuf {
    let path = dir.at("m.safetensors");
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) / 31.5).collect();
    let view = || array(&[8, 8], &values);
    let names = ["embed.weight", "layers.0.w", "layers.0.norm.w", "layers.1.w"];
    save(&path, names.map(|name| (name, view())), &quick().metadata([("format", "pt")])).unwrap();
    path
}

fn browse(dir: &Path, size: (u16, u16)) -> Session {
    model(dir);
    let session = Session::start(dir, &["browse", "m.safetensors"], size);
    session.wait_for("q quit");
    session
}

#[test]
fn it_opens_searches_and_quits() {
    let dir = temp_dir();
    let mut session = browse(dir.path(), (16, 100));
    session.expect(SCREEN_1);
    session.send(&[DOWN, DOWN, RIGHT, "j"].concat());
    session.wait_for("share       50.00%");
    session.send("/L");
    session.wait_for("0 tensors found");
    session.send(&["\x7fl1", UP, "\x15ayers.1"].concat());
    session.wait_for("/ ayers.1");
    session.wait_for("│ layers.1.w\n");
    session.send("\r");
    session.wait_for("Esc end search");
    session.send(ESC);
    session.wait_for("↑↓ move   →← open, close   / search   s statistics");
    session.send("q");
    assert!(session.end().success());
    session.wait_until_restored();
}

/// Where the details are below, they have few lines.
#[test]
fn requested_statistics_are_scrolled_to() {
    let dir = temp_dir();
    let session = browse(dir.path(), (24, 80));
    session.send(DOWN);
    let before = session.wait_for("dtype       F32");
    assert!(!before.contains("Statistics"), "{before}");
    session.send("s");
    let shown = session.wait_for("std         0.5864");
    for expected in ["Statistics", "min         -1\n", "mean        0\n", "max         1\n"] {
        assert!(shown.contains(expected) && !shown.contains("dtype       F32"), "{shown}");
    }
    // The keys scroll on from there, and another tensor begins at its top.
    session.send("\tG");
    session.wait_for("█");
    session.send("g");
    session.wait_for("dtype       F32");
    session.send("s");
    session.wait_for("std         0.5864");
    session.send("\tG");
    let module = session.wait_for("tensors     3");
    assert!(module.contains("layers\n\ntensors"), "{module}");
}

#[test]
fn statistics_of_a_file_that_changed_are_an_error() {
    let dir = temp_dir();
    let session = browse(dir.path(), (24, 100));
    fs::OpenOptions::new().write(true).open(dir.at("m.safetensors")).unwrap().set_len(600).unwrap();
    session.send(DOWN);
    session.send("s");
    session.wait_for("expected 1344 bytes, found 600");
    session.send("?");
    session.wait_for("Ctrl-C");
}

#[test]
fn every_size_of_terminal_is_drawn() {
    let dir = temp_dir();
    let session = browse(dir.path(), (24, 80));
    session.wait("details below", |screen| screen.contains("────"));
    for (rows, columns) in [(10, 40), (3, 20), (1, 5), (2, 1), (60, 200), (24, 80)] {
        session.resize(rows, columns);
        session.send("jo");
        session.send("?");
    }
    session.wait_for("tensors");
}

#[test]
fn the_terminal_is_restored_after_every_end() {
    // Keys, the screen that they show, and a signal that comes then or the keys that quit.
    let ends = [
        ("", "q quit", Ok("q")),
        ("", "q quit", Ok(CTRL_C)),
        ("/", "\n/", Ok(CTRL_C)),
        ("?", "Keys", Ok("q")),
        ("j", "dtype       F32", Err(("-TERM", 15))),
        ("/layers", "3 tensors found", Err(("-INT", 2))),
        ("?", "Keys", Err(("-HUP", 1))),
    ];
    for (keys, shown, end) in ends {
        let dir = temp_dir();
        let mut session = browse(dir.path(), (24, 80));
        session.send(keys);
        session.wait_for(shown);
        match end {
            Ok(keys) => session.send(keys),
            Err((signal, _)) => session.signal(signal),
        }
        let status = session.end();
        assert_eq!(status.code(), end.ok().map(|_| 0), "{keys:?}, {end:?}");
        assert_eq!(status.signal(), end.err().map(|(_, number)| number), "{keys:?}, {end:?}");
        session.wait_until_restored();
        assert_eq!(session.screen().trim(), "", "nothing is left on the screen");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn it_can_be_suspended_and_goes_on() {
    let dir = temp_dir();
    let mut session = browse(dir.path(), (12, 90));
    let before = session.screen();
    let stat = format!("/proc/{}/status", session.child.id());
    for keys in [CTRL_Z, ""] {
        session.send(keys);
        if keys.is_empty() {
            session.signal("-TSTP");
        }
        session.wait_until_restored();
        session
            .wait("stopped command", |_| fs::read_to_string(&stat).unwrap().contains("(stopped)"));
        session.signal("-CONT");
        session.expect(&before);
    }
    session.send("q");
    assert!(session.end().success());
    session.wait_until_restored();
}

#[test]
fn errors_come_before_the_terminal_is_taken() {
    let dir = temp_dir();
    raw_file(&dir.at("bad.safetensors"), "{\"a\":", 0);
    let mut session = Session::start(dir.path(), &["browse", "bad.safetensors"], (24, 80));
    assert_eq!(session.end().code(), Some(1));
    session.wait_for("error: bad.safetensors: ");
    assert!(!session.written().contains("\x1b[?1049h"));
}

#[test]
fn a_pipe_or_a_file_is_no_place_for_it() {
    let dir = temp_dir();
    model(dir.path());
    let other =
        contains("standard output is not a terminal").and(contains("`safetensors inspect`"));
    dir.run("browse m.safetensors").code(2).stdout("").stderr(other);
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let dir = temp_dir();
    hostile_file(dir.path());
    let session = Session::start(dir.path(), &["browse", "hostile.safetensors"], (24, 100));
    let screen = session.wait_for(r"\u{1b}[2Jred\u{202e}");
    assert!(is_plain(&screen), "{screen}");
    assert!(screen.contains(r"two\nlines") && screen.contains(r"k\u{1b}]0;owned\u{7}"), "{screen}");
    // The pasted query is shown too.
    session.send("/\x1b[200~\u{202e}x\x1b[31m\x1b[201~");
    session.wait_for(r"\u{202e}x[31m");
    let written = session.written();
    assert!(!written.contains("\x1b]0;") && !written.contains("\u{202e}"));
}
