//! What the system sends to end the command: SIGINT, SIGTERM and SIGHUP. What is half done is
//! cleared away first, and then the command ends by that very signal.

/// From here on, a signal that ends the command has it remove its temporary files first. A second
/// one ends it at once. What was ignored when the command began, as `nohup` does it, stays ignored.
///
/// A limit for the size of files (`ulimit -f`) is an error, and no signal.
#[cfg(unix)]
pub(crate) fn clean_up_after() -> std::io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use signal_hook::consts::SIGXFSZ;
    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    // A signal that is handled does not end the command, and writing fails.
    flag::register(SIGXFSZ, Arc::default())?;
    let ending = Arc::new(AtomicBool::new(false));
    let signals = ending_signals();
    for &signal in &signals {
        // In this order: the flag is not set yet when the first signal comes.
        flag::register_conditional_default(signal, Arc::clone(&ending))?;
        flag::register(signal, Arc::clone(&ending))?;
    }
    let mut signals = Signals::new(signals)?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            safetensors_core::save::remove_temporaries();
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn clean_up_after() -> std::io::Result<()> {
    Ok(())
}

/// Those that end the command and are not ignored.
#[cfg(unix)]
fn ending_signals() -> Vec<i32> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let all = [SIGINT, SIGTERM, SIGHUP];
    match ignored() {
        Some(ignored) => {
            all.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0).collect()
        }
        // `nohup` ignores SIGHUP, and it would be wrong to listen to it then.
        None => all.into_iter().filter(|&signal| signal != SIGHUP).collect(),
    }
}

/// The signals that whoever started the command has it ignore, the lowest bit for signal 1. Only
/// Linux tells.
#[cfg(unix)]
fn ignored() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
