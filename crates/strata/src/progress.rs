//! A bar on the terminal for work that lasts.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is done sooner needs no bar.
const HIDDEN_FOR: Duration = Duration::from_secs(1);

/// The bar that lines on standard error must not run into.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// How far some work is; shown once it has lasted a second, on a terminal only, and gone with the value.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    is_shown: Cell<bool>,
}

impl Progress {
    /// Of bytes.
    pub fn bytes(what: &str, total: u64) -> Progress {
        let template =
            "{wide_msg} {decimal_bytes} of {decimal_total_bytes} [{bar:20}] {decimal_bytes_per_sec} {eta}";
        Progress::start(what, total, template)
    }

    /// Of anything that is counted.
    pub fn count(what: &str, total: u64) -> Progress {
        Progress::start(what, total, "{wide_msg} {pos} of {len} [{bar:20}] {per_sec:.1} {eta}")
    }

    fn start(what: &str, total: u64, template: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        bar.set_style(
            ProgressStyle::with_template(template).expect("templates are constant").progress_chars("=> "),
        );
        bar.set_message(crate::output::plain(what));
        Progress { bar, started: Instant::now(), is_shown: Cell::new(false) }
    }

    /// So much is done.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
        if !self.is_shown.get() && self.started.elapsed() >= HIDDEN_FOR {
            self.is_shown.set(true);
            // Draws nothing where standard error is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            *SHOWN.lock().expect("no holder panics") = Some(self.bar.clone());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.is_shown.get() {
            *SHOWN.lock().expect("no holder panics") = None;
        }
    }
}

/// Lets `write` write to standard error while no bar is in its way.
pub fn beside<T>(write: impl FnOnce() -> T) -> T {
    // Not held while writing: what is written may be about a panic of a holder.
    let shown = SHOWN.lock().map(|shown| shown.clone()).unwrap_or_default();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}
