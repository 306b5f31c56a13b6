//! Screens of the interface, drawn into memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use safetensors_core::{SaveOptions, TensorView, save};
use tempfile::TempDir;

use super::app::Focus;
use super::*;
use crate::input;
use crate::model::totals::Parameters;

/// An interface on a screen in memory.
struct Test<'a> {
    app: App<'a>,
    view: View,
    terminal: Terminal<TestBackend>,
}

/// A checkpoint of tensors of two bytes each, with these names.
fn checkpoint<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> (TempDir, Arc<Checkpoint>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let tensors =
        names.into_iter().map(|name| (name, TensorView::from_slice(&[2, 1], &[1_u8, 2]).unwrap()));
    let options = SaveOptions::new()
        .metadata([("format", "pt"), ("attribute:a.w#units", "m/s")])
        .durable(false);
    save(&path, tensors, &options).unwrap();
    (dir, Arc::new(input::open(&path).unwrap()))
}

impl<'a> Test<'a> {
    fn new(checkpoint: &'a Checkpoint, width: u16, height: u16) -> Self {
        let mut tensors: Vec<_> = checkpoint.tensors().collect();
        let outline = Outline::new(
            "m.safetensors".into(),
            &Tree::build(&mut tensors, &Parameters::default(), Sort::Name, false),
        );
        let terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        Self { app: App::new(checkpoint, outline), view: View::new(Looks::new(true)), terminal }
    }

    fn draw(&mut self) {
        self.terminal.draw(|frame| self.view.draw(frame, &mut self.app)).unwrap();
    }

    /// Returns the screen as lines without blanks at their ends.
    fn screen(&mut self) -> String {
        self.draw();
        let buffer = self.terminal.backend().buffer();
        let width = usize::from(buffer.area.width);
        let line = |cells: &[ratatui::buffer::Cell]| {
            let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
            format!("{}\n", line.trim_end())
        };
        buffer.content.chunks(width).map(line).collect()
    }

    fn press(&mut self, key: KeyCode) -> Wish {
        let wish = self.app.key(KeyEvent::new(key, KeyModifiers::NONE));
        self.draw();
        wish
    }

    fn write(&mut self, text: &str) {
        for c in text.chars() {
            self.press(KeyCode::Char(c));
        }
    }

    /// Returns the name of the selected tensor or module.
    fn selected(&self) -> String {
        self.app.outline.path_of(self.app.selected())
    }
}

#[test]
fn a_wide_screen_shows_the_tree_and_details() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x.0", "b.x.1", "b.y"]);
    let mut test = Test::new(&checkpoint, 90, 11);
    for _ in 0..2 {
        test.press(KeyCode::Down);
    }
    test.press(KeyCode::Right);
    let expected = "\
▾ m.safetensors              4 tensors       8 B │ b
    a.w                      U8 [2, 1]       2 B │
  ▾ b                        3 tensors       6 B │ tensors     3
    ▸ x                      2 tensors       4 B │ parameters  6
      y                      U8 [2, 1]       2 B │ size        6 bytes
                                                 │ share       75.00%
                                                 │
                                                 │ Dtypes
                                                 │ U8          3 tensors, 6 B
                                                 │
↑↓ move   →← open, close   / search   Tab details   ? keys   q quit
";
    assert_eq!(test.screen(), expected);
}

#[test]
fn details_are_below_on_a_narrow_screen() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x.0"]);
    let mut test = Test::new(&checkpoint, 40, 16);
    test.press(KeyCode::Down);
    let expected = "\
▾ m.safetensors      2 tensors       4 B
    a.w              U8 [2, 1]       2 B
    b.x.0            U8 [2, 1]       2 B





────────────────────────────────────────
a.w

dtype       U8
shape       [2, 1]
parameters  2
size        2 bytes
↑↓ move   ? keys   q quit
";
    assert_eq!(test.screen(), expected);
}

#[test]
fn a_search_filters_and_selects_its_result() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x.Query", "b.x.key", "b.y.query", "c"]);
    let mut test = Test::new(&checkpoint, 90, 14);
    test.press(KeyCode::Char('/'));
    test.write("query");
    assert_eq!((test.app.found, test.selected().as_str()), (2, "b.x.Query"));
    let screen = test.screen();
    assert!(screen.contains("/ query") && screen.contains("2 tensors found"), "{screen}");
    assert!(!screen.contains("key") && !screen.contains("a.w"), "{screen}");
    // A capital has to match.
    for _ in 0..5 {
        test.press(KeyCode::Backspace);
    }
    test.write("Q");
    assert_eq!((test.app.found, test.selected().as_str()), (1, "b.x.Query"));
    test.press(KeyCode::Enter);
    assert_eq!(test.app.focus, Focus::Tree);
    test.press(KeyCode::Esc);
    // The modules around it stay open, and everything is there again.
    assert_eq!(test.selected(), "b.x.Query");
    let screen = test.screen();
    assert!(screen.contains("key") && screen.contains("a.w"), "{screen}");
}

#[test]
fn a_search_takes_every_letter_as_it_is_and_small_ones_for_capitals() {
    let (_dir, checkpoint) = checkpoint(["a.w", "aqw", "Änderung", "(b"]);
    let mut test = Test::new(&checkpoint, 90, 14);
    for (text, found, selected) in [("a.w", 1, "a.w"), ("än", 1, "Änderung"), ("(", 1, "(b")] {
        test.press(KeyCode::Char('/'));
        test.write(text);
        assert_eq!((test.app.found, test.selected().as_str()), (found, selected));
        test.press(KeyCode::Esc);
    }
}

/// Keys may come faster than frames are drawn.
#[test]
fn a_query_that_was_never_drawn_is_searched_for() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x", "b.y"]);
    let mut test = Test::new(&checkpoint, 90, 14);
    let mut type_all = |text: &str| {
        for c in text.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            test.app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        (test.selected(), test.app.found)
    };
    assert_eq!(type_all("/b.y\n"), ("b.y".to_owned(), 1));
    assert_eq!(type_all("/x"), ("b.y".to_owned(), 1), "no frame, no search");
    assert_eq!(type_all("\n"), (String::new(), 0), "nothing but the top is left");
}

#[test]
fn an_abandoned_search_changes_nothing() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x", "b.y"]);
    let mut test = Test::new(&checkpoint, 90, 14);
    test.press(KeyCode::Down);
    let before = test.screen();
    test.press(KeyCode::Char('/'));
    test.write("b.y");
    assert_eq!(test.selected(), "b.y");
    test.press(KeyCode::Esc);
    assert_eq!(test.screen(), before);
    test.press(KeyCode::Char('/'));
    test.write("nowhere");
    assert!(test.screen().contains("0 tensors found"));
    // Keys for the list do no harm where it is empty.
    for key in [KeyCode::Down, KeyCode::PageUp, KeyCode::Enter, KeyCode::Right, KeyCode::Char('s')]
    {
        assert_eq!(test.press(key), Wish::Nothing);
    }
    test.press(KeyCode::Esc);
    assert_eq!(test.screen(), before);
}

#[test]
fn modules_open_and_close() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x.0", "b.x.1", "b.y"]);
    let mut test = Test::new(&checkpoint, 90, 14);
    let mut after = |key: KeyCode| {
        test.press(key);
        (test.selected(), test.app.outline.len())
    };
    let at = |name: &str, rows| (name.to_owned(), rows);
    assert_eq!(after(KeyCode::Char('G')), at("b", 3));
    assert_eq!(after(KeyCode::Right), at("b", 5));
    assert_eq!(after(KeyCode::Right), at("b.x", 5));
    assert_eq!(after(KeyCode::Enter), at("b.x", 7));
    assert_eq!(after(KeyCode::Char('j')), at("b.x.0", 7));
    assert_eq!(after(KeyCode::Left), at("b.x", 7));
    assert_eq!(after(KeyCode::Left), at("b.x", 5));
    assert_eq!(after(KeyCode::Left), at("b", 5));
    assert_eq!(after(KeyCode::Char('o')), at("b", 7));
    assert_eq!(after(KeyCode::Char('c')), at("b", 3));
    assert_eq!(after(KeyCode::Char('g')), at("", 3));
    assert_eq!(after(KeyCode::Char('o')), at("", 7));
    assert_eq!(after(KeyCode::Char('c')), at("", 3));
    assert_eq!(after(KeyCode::Left), at("", 1));
    assert_eq!(after(KeyCode::Left), at("", 1));
}

#[test]
fn keys_ask_for_statistics_of_tensors_only() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b.x", "b.y"]);
    let mut test = Test::new(&checkpoint, 90, 24);
    assert_eq!(test.press(KeyCode::Char('s')), Wish::Nothing);
    test.press(KeyCode::Down);
    let node = test.app.selected();
    assert_eq!(test.press(KeyCode::Char('s')), Wish::Compute(node));
    test.app.take_values(node, Err("a\u{1b}b".into()));
    assert_eq!(test.press(KeyCode::Char('s')), Wish::Nothing, "they are there");
    assert!(test.screen().contains(r"a\u{1b}b"));
    assert_eq!(test.press(KeyCode::Char('q')), Wish::Quit);
    let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(test.app.key(end), Wish::Quit);
}

/// Work that is cancelled sends nothing.
#[test]
fn statistics_are_computed_and_cancelled() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b"]);
    let (sender, events) = mpsc::channel();
    let job = Job::start(&checkpoint, "a.w", 7, sender.clone()).unwrap();
    let Ok(Event::Values { node: 7, found: Ok(facts) }) = events.recv() else { panic!() };
    assert!(facts.lines.contains(&("max", "2".to_owned())), "{facts:?}");
    assert!((job.fraction() - 1.0).abs() < 1e-9);
    let tensor = checkpoint.tensor("b").unwrap();
    let progress = crate::terminal::progress::Progress::silent(2);
    progress.cancel();
    let error = crate::commands::stats::of_tensor(&tensor, 4, &progress).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    drop(sender);
    assert!(events.recv().is_err());
}

#[test]
fn hostile_and_wide_names_are_shown_escaped_and_in_line() {
    let (_dir, checkpoint) = checkpoint(["\u{1b}[2J.\u{202e}", "层.注意力.权重", "层.b\nc", ""]);
    let mut test = Test::new(&checkpoint, 90, 14);
    test.press(KeyCode::Char('o'));
    let screen = test.screen();
    for shown in [r"\u{1b}[2J.\u{202e}", r"b\nc", "\"\""] {
        assert!(screen.contains(shown), "no {shown} on:\n{screen}");
    }
    test.press(KeyCode::Char('/'));
    test.write("\u{202e}意");
    assert!(test.screen().contains(r"/ \u{202e}意"));
}

#[test]
fn every_size_of_screen_is_drawn() {
    let names = (0..50).map(|i| format!("{}.weight", "module.".repeat(i)));
    let (_dir, checkpoint) = checkpoint(names.chain(["注".repeat(300)]));
    for (width, height) in [(1, 1), (2, 2), (5, 3), (20, 4), (83, 11), (84, 12), (300, 100)] {
        let mut test = Test::new(&checkpoint, width, height);
        for key in ['o', 'G', 's', '?', 'x', '/', 'w'] {
            test.press(KeyCode::Char(key));
        }
        test.press(KeyCode::Tab);
        test.press(KeyCode::Tab);
        test.press(KeyCode::End);
        test.screen();
    }
}

#[test]
fn details_scroll() {
    let (_dir, checkpoint) = checkpoint(["a.w", "b"]);
    let mut test = Test::new(&checkpoint, 90, 8);
    assert!(!test.screen().contains("Files (1)"));
    test.press(KeyCode::Tab);
    test.press(KeyCode::End);
    assert!(test.screen().contains("header of"), "{}", test.screen());
    test.press(KeyCode::PageUp);
    test.press(KeyCode::Home);
    test.press(KeyCode::Up);
    assert_eq!((test.app.scroll, test.selected().as_str()), (0, ""));
    test.press(KeyCode::Tab);
    test.press(KeyCode::Down);
    assert_eq!(test.selected(), "a.w");
}

/// However large a checkpoint is, a frame looks at the rows on the screen.
#[test]
fn a_frame_touches_only_the_visible_rows() {
    let names = (0..100_000).map(|i| format!("layers.{}.experts.{}.w", i / 1000, i % 1000));
    let (_dir, checkpoint) = checkpoint(names);
    let mut test = Test::new(&checkpoint, 100, 30);
    test.press(KeyCode::Char('o'));
    assert!(test.app.outline.len() > 100_000);
    for key in [KeyCode::End, KeyCode::PageUp, KeyCode::Up, KeyCode::Home, KeyCode::PageDown] {
        test.press(key);
        test.app.outline.looks.set(0);
        test.draw();
        let looks = test.app.outline.looks.get();
        assert!((29..100).contains(&looks), "{looks} nodes for 29 rows after {key:?}");
    }
}
