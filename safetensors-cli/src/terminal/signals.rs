//! Signals that end the command, and SIGXFSZ for a file that is too large.

/// Makes a limit for the size of files (`ulimit -f`) an error of writing, instead of a signal.
pub(crate) fn make_limits_errors() {
    // Whatever the handler does: a signal that has one does not end the command.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
}

/// Makes SIGINT, SIGTERM and SIGHUP first remove temporary files, and parts in a store by
/// `abort_uploads`, in ten seconds at most. A second signal ends the command at once. Signals
/// ignored from the start, as with `nohup`, stay ignored. Where signals cannot be listened to, the
/// next save removes the leftovers.
pub(crate) fn clean_up_after_them(abort_uploads: fn()) {
    #[cfg(any(unix, windows))]
    let _ = listen(abort_uploads);
    #[cfg(not(any(unix, windows)))]
    let _ = abort_uploads;
}

/// Whether a signal has come that ends the command, once listened to.
static IS_ENDING: std::sync::OnceLock<std::sync::Arc<std::sync::atomic::AtomicBool>> =
    std::sync::OnceLock::new();

/// Does not return if a signal is about to end the command, so that its effects, such as an aborted
/// upload, are not reported.
pub(crate) fn wait_if_ending() {
    while IS_ENDING.get().is_some_and(|it| it.load(std::sync::atomic::Ordering::SeqCst)) {
        std::thread::park();
    }
}

/// Whether Ctrl-C ends the command, or is left to the pager.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    end_the_command: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Interrupts {
    /// Leaves Ctrl-C to the pager, which the terminal also sends it to.
    pub(crate) fn left_to_the_pager() -> Self {
        let interrupts = Self::default();
        #[cfg(unix)]
        if ending_signals().contains(&signal_hook::consts::SIGINT) {
            let ends = std::sync::Arc::clone(&interrupts.end_the_command);
            // If this fails, Ctrl-C ends the command as always.
            let _ =
                signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, ends);
        }
        interrupts
    }

    /// Lets Ctrl-C end the command again.
    pub(crate) fn end_the_command(&self) {
        self.end_the_command.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(unix)]
fn listen(abort_uploads: fn()) -> std::io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let listened_to = ending_signals();
    // Until the thread listens, and if it cannot be started, a signal ends the command at once.
    let is_ending = Arc::new(AtomicBool::new(true));
    for &signal in &listened_to {
        // This comes first: the first signal finds the flag not set, and then sets it.
        flag::register_conditional_default(signal, Arc::clone(&is_ending))?;
    }
    let mut signals = Signals::new(&listened_to)?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            safetensors_core::save::remove_temporaries();
            abort_uploads();
            let _ = emulate_default_handler(signal);
        }
    })?;
    for signal in listened_to {
        flag::register(signal, Arc::clone(&is_ending))?;
    }
    is_ending.store(false, Ordering::SeqCst);
    let _ = IS_ENDING.set(is_ending);
    Ok(())
}

/// On Windows, Ctrl-C is no signal. A second one waits for the first.
#[cfg(windows)]
fn listen(abort_uploads: fn()) -> Result<(), ctrlc::Error> {
    /// `STATUS_CONTROL_C_EXIT`.
    const INTERRUPTED: u32 = 0xC000_013A;

    let is_ending = IS_ENDING.get_or_init(Default::default);
    ctrlc::set_handler(move || {
        is_ending.store(true, std::sync::atomic::Ordering::SeqCst);
        safetensors_core::save::remove_temporaries();
        abort_uploads();
        std::process::exit(INTERRUPTED.cast_signed())
    })
}

/// Returns the signals that end the command and are not ignored.
#[cfg(unix)]
pub(crate) fn ending_signals() -> Vec<i32> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let mut signals = vec![SIGINT, SIGTERM, SIGHUP];
    match ignored() {
        Some(ignored) => signals.retain(|signal| ignored & 1 << (signal - 1) == 0),
        // `nohup` ignores SIGHUP, and it would be wrong to listen to it then.
        None => signals.retain(|&signal| signal != SIGHUP),
    }
    signals
}

/// Returns the signals that the parent process made the command ignore, on Linux; the lowest bit is
/// signal 1.
#[cfg(unix)]
fn ignored() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
