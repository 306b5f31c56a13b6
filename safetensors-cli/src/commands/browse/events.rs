//! [`Event`]: all that the interface waits for, in one channel.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use ratatui::crossterm::event::{self, KeyEvent};

use crate::commands::stats::Facts;

#[derive(Debug)]
pub(super) enum Event {
    Key(KeyEvent),
    Paste(String),
    /// The terminal has another size, or its content is lost.
    Redraw,
    Values {
        node: usize,
        found: Result<Facts, String>,
    },
    /// The system asks to stop, as for Ctrl-Z elsewhere.
    #[cfg(unix)]
    Suspend,
    #[cfg(unix)]
    Ended(i32),
    Failed(io::Error),
}

pub(super) fn listen(events: Sender<Event>) -> io::Result<()> {
    #[cfg(unix)]
    signals(events.clone())?;
    thread::Builder::new().name("keys".into()).spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) => Event::Key(key),
                Ok(event::Event::Paste(text)) => Event::Paste(text),
                Ok(event::Event::Resize(..)) => Event::Redraw,
                Ok(_) => continue,
                Err(error) => Event::Failed(error),
            };
            let is_last = matches!(event, Event::Failed(_));
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(())
}

/// Sends the first signal that ends the command. A second one ends it at once.
#[cfg(unix)]
fn signals(events: Sender<Event>) -> io::Result<()> {
    use signal_hook::consts::SIGTSTP;
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut listened_to = crate::terminal::signals::ending_signals();
    listened_to.push(SIGTSTP);
    let mut signals = Signals::new(listened_to)?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            let event = if signal == SIGTSTP { Event::Suspend } else { Event::Ended(signal) };
            let is_second = is_ending && signal != SIGTSTP;
            is_ending |= signal != SIGTSTP;
            if is_second || events.send(event).is_err() {
                let _ = ratatui::crossterm::terminal::disable_raw_mode();
                let _ = emulate_default_handler(signal);
            }
        }
    })?;
    Ok(())
}
