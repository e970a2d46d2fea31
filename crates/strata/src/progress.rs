//! A bar or a spinner on the terminal for work that lasts.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// What is done sooner needs no bar.
const HIDDEN_FOR: Duration = Duration::from_secs(1);

/// Between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(100);

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
        Progress::start(what, total, "{wide_msg} {pos} of {len} [{bar:20}] {rate} {eta}")
    }

    fn start(what: &str, total: u64, template: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        // What stands behind a colon in a template is a width or a colour, and never digits: `.1` was red.
        let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{:.0}/s", state.per_sec());
        };
        let style = ProgressStyle::with_template(template).expect("templates are constant");
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
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

/// Work of unknown length; shown once it has lasted a second, on a terminal only, and gone with the value.
pub struct Waiting {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// From now on.
    pub fn start(what: &str) -> Waiting {
        if !io::stderr().is_terminal() {
            return Waiting { ended: None, thread: None };
        }
        let (ended, end) = mpsc::channel::<()>();
        let what = crate::output::plain(what);
        let show = move || {
            // The sender says nothing; it goes when the work is done.
            if end.recv_timeout(HIDDEN_FOR) == Err(RecvTimeoutError::Timeout) {
                let bar = ProgressBar::new_spinner().with_message(what);
                bar.enable_steady_tick(TICK);
                *SHOWN.lock().expect("no holder panics") = Some(bar.clone());
                let _ = end.recv();
                *SHOWN.lock().expect("no holder panics") = None;
                bar.finish_and_clear();
            }
        };
        // Without a thread there is no spinner, which nobody misses.
        let thread = std::thread::Builder::new().name("spinner".into()).spawn(show).ok();
        Waiting { ended: Some(ended), thread }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.ended.take());
        // Joined, so that what is printed next does not run into the spinner.
        let _ = self.thread.take().map(JoinHandle::join);
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
