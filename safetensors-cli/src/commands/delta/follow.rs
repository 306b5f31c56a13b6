//! `safetensors delta follow`: keeps a checkpoint at a trainer's newest version.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use safetensors_core::ErrorKind;
use safetensors_core::checkpoint::store::LocalStore;
use safetensors_delta::{Follower, Options, Update};

use super::{advise, refuse_address, warn_of_left_out};
use crate::input::{self, address};
use crate::output::file::tell;
use crate::terminal::report::{report, warn, wrong_usage};
use crate::terminal::text;

/// `timeout` has the same exit code.
const TIMED_OUT: u8 = 124;

/// Keep OUT at the newest version that a trainer publishes in ROOT
///
/// ROOT is a directory or a bucket that slime or miles fills with versions: directories such as
/// weight_v000003, with a delta or a full checkpoint. Other names are ignored. A ROOT that does not
/// exist yet is waited for. A version counts once its index, or its single model.safetensors, is
/// there.
///
/// OUT gets the newest full version and the deltas after it, and then each new delta. It opens as
/// the old version or the new one at every moment, also after a kill. Files of no version stay, but
/// a full version brings its other files, such as config.json. A hidden file in OUT records the
/// version. If the trainer starts over, so does OUT, with a full version. Each version that OUT
/// gets is one line on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  safetensors delta follow /mnt/run/weights served/
  safetensors delta follow s3://bucket/run served/ --interval 2 --timeout 600
  safetensors delta follow /mnt/run/weights served/ --until 42
  safetensors delta follow /mnt/run/weights served/ --base step-0/ --once

Exit codes: 0 OUT has the version of --until or, with --once, the newest one, 1 a version is
damaged or does not follow the one before, ROOT cannot be read or OUT cannot be written, or, with
--once, there is no version, 2 wrong usage, 124 nothing new came within --timeout.")]
pub(super) struct Follow {
    /// The directory of the trainer, or its address (feature remote)
    #[arg(value_name = "ROOT", value_parser = address::parser())]
    root: PathBuf,
    /// The directory of the checkpoint
    #[arg(value_name = "OUT", value_parser = address::parser())]
    out: PathBuf,
    /// The seconds between two looks at ROOT
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    interval: Duration,
    /// End with the exit code 124 if nothing new comes for this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "once")]
    timeout: Option<Duration>,
    /// End once OUT has this version; later ones are ignored, and a newer OUT goes back to it
    #[arg(long, value_name = "VERSION", value_parser = input::integer::<u64>(0..=u64::MAX))]
    until: Option<u64>,
    /// Apply what is there now, and end
    #[arg(long)]
    once: bool,
    /// The checkpoint that the first delta changes, if ROOT has no full version
    #[arg(long, value_name = "BASE", value_parser = address::parser())]
    base: Option<PathBuf>,
    /// Replace a checkpoint in OUT that this command did not write
    #[arg(long)]
    force: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Follow {
    pub(super) fn run(&self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        refuse_address(&self.out, "OUT")?;
        if input::is_stdin(&self.root) {
            return Err(wrong_usage("ROOT is a directory, which cannot be standard input"));
        }
        let mut follower = Follower::new(&self.out).options(Options::new().overwrite(self.force));
        if let Some(until) = self.until {
            follower = follower.until(until);
        }
        if let Some(base) = &self.base {
            follower = follower.base(input::open(base)?);
        }
        let mut since = Instant::now();
        loop {
            if let Some(update) = self.poll(&follower)? {
                self.report_update(&update, out)?;
                since = Instant::now();
                continue;
            }
            let here = follower.version()?;
            if here.is_some() && here == self.until || self.once {
                let name = input::name(&self.root);
                anyhow::ensure!(here.is_some(), "{name}: there is no complete version");
                return Ok(ExitCode::SUCCESS);
            }
            let left = self.timeout.map(|timeout| timeout.saturating_sub(since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(self.timed_out(here));
            }
            std::thread::sleep(left.map_or(self.interval, |left| left.min(self.interval)));
        }
    }

    // An address is opened each time, because its store caches its list of files.
    fn poll(&self, follower: &Follower) -> anyhow::Result<Option<Update>> {
        let Some(address) = address::in_path(&self.root) else {
            return follower.poll_in(LocalStore, &self.root).map_err(advise);
        };
        let (store, path) = address::store(address)?;
        follower.poll_in(store, path).map_err(|error| match error.kind() {
            ErrorKind::FileExists => advise(error),
            _ => address::explain(error, address),
        })
    }

    fn report_update(&self, update: &Update, out: &mut impl Write) -> anyhow::Result<()> {
        if !update.is_checked {
            warn(format!(
                "{}: no delta up to version {:06} has a digest of its base, so unchanged tensors \
                 are not checked",
                input::name(&self.root),
                update.version
            ));
        }
        warn_of_left_out(&self.out, &update.left_out);
        let deltas = text::counted(update.deltas as u64, "delta");
        let made_of = match (update.full, update.before) {
            (Some(full), _) if full == update.version => "a full version".to_owned(),
            (Some(full), _) => format!("of the full version {full:06} and {deltas}"),
            (None, Some(before)) => format!("of version {before:06} and {deltas}"),
            (None, None) => format!("of BASE and {deltas}"),
        };
        let replaced = update.before.filter(|_| update.full.is_some());
        let replaced = replaced.map(|before| format!(", replacing version {before:06}"));
        let replaced = replaced.unwrap_or_default();
        let content = format_args!("version {:06}, {made_of}{replaced}", update.version);
        tell(out, &text::path(&self.out), "written", content)
    }

    fn timed_out(&self, here: Option<u64>) -> ExitCode {
        let seconds = self.timeout.unwrap_or_default().as_secs_f64();
        let than = here.map(|here| format!(" after {here:06}")).unwrap_or_default();
        report(format!(
            "{}: no version{than} came within {seconds} seconds",
            input::name(&self.root)
        ));
        ExitCode::from(TIMED_OUT)
    }
}
