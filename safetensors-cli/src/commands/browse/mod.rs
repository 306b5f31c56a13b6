//! `safetensors browse`: looks through a checkpoint in the terminal.
//!
//! | file | content |
//! |---|---|
//! | `screen` | the terminal: taken, given back after an end of any kind |
//! | `events` | keys, signals and results, in one channel |
//! | `app` | the state, and how keys change it |
//! | `outline` | modules and tensors, and which of them are visible |
//! | `values` | statistics, computed in another thread |
//! | `view`, `details`, `looks` | how it is drawn |

mod app;
mod details;
mod events;
mod looks;
mod outline;
mod screen;
#[cfg(test)]
mod tests;
mod values;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Context;
use app::{App, Wish};
use events::Event;
use looks::Looks;
use outline::{Kind, Outline};
use safetensors_core::framework::Quoted;
use screen::Screen;
use values::Job;
use view::View;

use super::Run;
use crate::input::select::Select;
use crate::input::values::Values;
use crate::input::{self, Checkpoint, Input, other};
use crate::model::order::Sort;
use crate::model::totals::Parameters;
use crate::model::tree::Tree;
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;

/// Look through a checkpoint in the terminal: modules, search, statistics of tensors.
///
/// Reads only headers until you ask for the statistics of a tensor. A quantised weight has the
/// statistics of its numbers.
///
/// Arrows or hjkl move, open and close; o and c open and close all below. / searches, s shows
/// statistics, Tab scrolls the details, Esc goes back, q quits, and ? shows all keys. If the
/// checkpoint comes from standard input, keys come from the terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    values: Values,
}

const EXAMPLES: &str = "\
Examples:
  safetensors browse model.safetensors
  safetensors browse path/to/checkpoint/

Exit codes: 0 quit, 1 PATH cannot be read, or the terminal fails, 2 wrong usage.";

const TICK: Duration = Duration::from_millis(100);

enum End {
    Quit,
    #[cfg(unix)]
    Signal(i32),
}

impl Run for Args {
    fn handles_signals(&self) -> bool {
        true
    }

    fn run(&self, _: &mut Out) -> anyhow::Result<ExitCode> {
        if !Screen::is_there() {
            return Err(wrong_usage(
                "standard output is not a terminal; `safetensors inspect` shows a checkpoint there",
            ));
        }
        let checkpoint = Arc::new(self.input.open()?);
        let weights = input::quantized_weights(&checkpoint);
        let may_have_codes = !weights.is_empty() || other::is_in(checkpoint.files());
        // A pipe cannot be opened twice.
        let numbers = if !may_have_codes || input::is_pipe(self.input.path()) {
            Arc::clone(&checkpoint)
        } else {
            let opened = self.input.open_with(self.values.opening())?;
            Arc::new(self.values.apply(opened, Select::default().matcher())?)
        };
        let mut tensors: Vec<_> = checkpoint.tensors().collect();
        let outline = Outline::new(
            self.input.name(),
            &Tree::build(&mut tensors, &Parameters::new(&weights), Sort::Name, false),
        );
        drop(tensors);
        let app = App::new(&checkpoint, outline);
        match screen::guarded(|| interface(&checkpoint, &numbers, app))? {
            End::Quit => Ok(ExitCode::SUCCESS),
            #[cfg(unix)]
            End::Signal(signal) => {
                signal_hook::low_level::emulate_default_handler(signal)?;
                // The default of these signals is to end the process, so this is not reached.
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// `numbers` has the quantised weights as codes.
fn interface(
    checkpoint: &Arc<Checkpoint>,
    numbers: &Arc<Checkpoint>,
    mut app: App<'_>,
) -> anyhow::Result<End> {
    let (sender, events) = mpsc::channel();
    let mut view = View::new(Looks::from_environment());
    let mut screen = Screen::enter().context("the terminal")?;
    events::listen(sender.clone()).context("the terminal")?;
    loop {
        screen.terminal.draw(|frame| view.draw(frame, &mut app)).context("the terminal")?;
        let Some(first) = next(&events, app.job.is_some())? else { continue };
        // Keys may come faster than frames are drawn.
        for event in std::iter::once(first).chain(events.try_iter()) {
            let wish = match event {
                Event::Key(key) => app.key(key),
                Event::Paste(text) => {
                    app.paste(&text);
                    Wish::Nothing
                }
                Event::Redraw => Wish::Nothing,
                Event::Values { node, found } => {
                    app.take_values(node, found);
                    Wish::Nothing
                }
                #[cfg(unix)]
                Event::Suspend => Wish::Suspend,
                #[cfg(unix)]
                Event::Ended(signal) => {
                    screen.leave().context("the terminal")?;
                    return Ok(End::Signal(signal));
                }
                Event::Failed(error) => return Err(error).context("the terminal"),
            };
            match wish {
                Wish::Nothing => {}
                Wish::Compute(node) => {
                    start([numbers, checkpoint], &mut app, node, &sender)?;
                }
                Wish::Suspend => suspend(&mut screen).context("the terminal")?,
                Wish::Quit => {
                    screen.leave().context("the terminal")?;
                    return Ok(End::Quit);
                }
            }
        }
    }
}

/// Returns `None` if it is time to show progress.
fn next(events: &Receiver<Event>, is_working: bool) -> anyhow::Result<Option<Event>> {
    if !is_working {
        return Ok(Some(events.recv()?));
    }
    match events.recv_timeout(TICK) {
        Ok(event) => Ok(Some(event)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn start(
    sources: [&Arc<Checkpoint>; 2],
    app: &mut App<'_>,
    node: usize,
    events: &Sender<Event>,
) -> anyhow::Result<()> {
    if let Kind::Tensor(tensor) = app.outline.node(node).kind {
        let [numbers, stored] = sources;
        let name = tensor.info.name();
        let from = if numbers.get(name).is_some() { numbers } else { stored };
        let job = Job::start(from, name, node, events.clone());
        app.job = Some(job.with_context(|| format!("tensor {}", Quoted(name)))?);
    }
    Ok(())
}

/// Stops the process as Ctrl-Z does, until the shell continues it.
fn suspend(screen: &mut Screen) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        screen.leave()?;
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        screen.resume()?;
    }
    #[cfg(not(unix))]
    let _ = screen;
    Ok(())
}
