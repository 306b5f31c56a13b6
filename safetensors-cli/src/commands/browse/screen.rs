//! [`Screen`]: the terminal while the interface has it, and as it was afterwards.

use std::any::Any;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};
use safetensors_core::lock;

/// The terminal with a separate screen, restored on drop.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    is_entered: bool,
}

impl Screen {
    pub(super) fn is_there() -> bool {
        io::stdout().is_terminal()
    }

    pub(super) fn enter() -> io::Result<Self> {
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout()));
        let mut screen = Self { terminal: Terminal::new(backend)?, is_entered: false };
        screen.resume()?;
        Ok(screen)
    }

    pub(super) fn resume(&mut self) -> io::Result<()> {
        // First, so that a failure below is undone.
        self.is_entered = true;
        enable_raw_mode()?;
        execute!(self.terminal.backend_mut(), EnterAlternateScreen, EnableBracketedPaste, Hide)?;
        // Draws everything again. `clear` would ask the terminal for its cursor, and not all
        // answer.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    pub(super) fn leave(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_entered) {
            return Ok(());
        }
        let shown = execute!(
            self.terminal.backend_mut(),
            Show,
            DisableBracketedPaste,
            LeaveAlternateScreen
        );
        disable_raw_mode().and(shown)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be restored.
        let _ = self.leave();
    }
}

/// Runs an interface. The message of a panic is printed on the restored terminal.
pub(super) fn guarded<T>(interface: impl FnOnce() -> T) -> T {
    let message = Arc::new(Mutex::new(String::new()));
    let (own, written) = (thread::current().id(), Arc::clone(&message));
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // Other threads report their panics themselves.
        if thread::current().id() == own {
            *lock(&written) = panic.to_string();
        }
    }));
    let outcome: Result<T, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(interface));
    panic::set_hook(previous);
    outcome.unwrap_or_else(|payload| {
        let _ = writeln!(io::stderr(), "{}", lock(&message));
        panic::resume_unwind(payload)
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Read;

    use super::*;

    const RUNS_INSIDE: &str = "SAFETENSORS_TEST_OF_SCREEN";

    /// Runs this very test again in a pseudo-terminal, where it panics.
    #[test]
    fn a_panic_is_printed_on_the_restored_screen() {
        if std::env::var_os(RUNS_INSIDE).is_some() {
            guarded(|| {
                let mut screen = Screen::enter().unwrap();
                screen.terminal.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
                assert!(thread::spawn(|| panic!("in another thread")).join().is_err());
                panic!("in the interface");
            })
        }
        let (mut pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(pty_process::Size::new(24, 80)).unwrap();
        let before = nix::sys::termios::tcgetattr(&pts).unwrap();
        let name = "commands::browse::screen::tests::a_panic_is_printed_on_the_restored_screen";
        let mut command = pty_process::blocking::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(RUNS_INSIDE, "1")
            .env_remove("RUST_BACKTRACE");
        let mut child = command.spawn_borrowed(&pts).unwrap();
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&bytes).contains("test result") {
            let n = pty.read(&mut piece).unwrap();
            bytes.extend_from_slice(&piece[..n]);
        }
        assert!(!child.wait().unwrap().success());
        let length = |length| std::num::NonZero::<u16>::new(length).unwrap();
        let mut seen = vt100::Parser::new(length(24), length(80), 0);
        seen.process(&bytes);
        let screen = seen.screen().contents();
        assert!(!seen.screen().alternate_screen() && !seen.screen().hide_cursor(), "{screen}");
        assert!(screen.contains("in the interface") && !screen.contains("drawn"), "{screen}");
        assert!(!screen.contains("in another thread"), "{screen}");
        assert!(nix::sys::termios::tcgetattr(&pts).unwrap() == before);
    }
}
