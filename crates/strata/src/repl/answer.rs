//! An answer on its way to the screen.

use std::fmt;
use std::time::Duration;

use chat::{ChatAnswer, ChatEnd, ChatEvent, Finish};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;
use crate::output::{self, DIM, Output, PLAIN};
use crate::progress::Progress;

/// An answer that was written.
pub struct Written {
    /// What was thought before.
    pub thinking: String,
    /// What was said.
    pub text: String,
    /// How it ended.
    pub end: ChatEnd,
}

/// Every Ctrl-C from here on, none of which ends the program any more. In a pipe nobody asks for them: there the signal
/// ends the program, as it does with any other.
///
/// # Errors
/// [`Error::Io`].
pub fn interrupts() -> Result<Signal, Error> {
    signal(SignalKind::interrupt()).map_err(|source| Error::Io {
        action: "listen to",
        what: "Ctrl-C".into(),
        source,
    })
}

/// Writes an answer as it comes. On a terminal, which has `interrupts`, thinking is shown dimmed and Ctrl-C stops the answer.
///
/// # Errors
/// Those of the output.
pub async fn write(
    mut answer: ChatAnswer,
    output: Output,
    mut interrupts: Option<Signal>,
) -> Result<Written, Error> {
    let terminal = interrupts.is_some();
    let mut screen = Screen { output, terminal, colours: output::colours(), thinking: false };
    let (mut thinking, mut text) = (String::new(), String::new());
    let mut reading: Option<Progress> = None;
    let end = loop {
        let event = tokio::select! {
            biased;
            Some(()) = interrupt(&mut interrupts) => {
                answer.cancel();
                continue;
            }
            event = answer.next() => event.expect("an end before the last event"),
        };
        if !matches!(event, ChatEvent::Reading { .. }) {
            reading = None;
        }
        match event {
            ChatEvent::Reading { done, of } => {
                reading.get_or_insert_with(|| Progress::count("reading", of as u64)).set(done as u64);
            }
            ChatEvent::Thinking(piece) => {
                screen.thinking(&piece)?;
                thinking.push_str(&piece);
            }
            ChatEvent::Text(piece) => {
                screen.text(&piece)?;
                text.push_str(&piece);
            }
            ChatEvent::End(end) => break end,
        }
    };
    let remark = match end.reason {
        Ok(Finish::Cancelled) => Some("stopped"),
        Ok(Finish::Length) => Some("cut off: as many tokens as -n or the context allows"),
        _ => None,
    };
    screen.end(text.ends_with('\n'), remark)?;
    Ok(Written { thinking, text, end })
}

/// The next Ctrl-C.
async fn interrupt(interrupts: &mut Option<Signal>) -> Option<()> {
    interrupts.as_mut()?.recv().await
}

struct Screen {
    output: Output,
    terminal: bool,
    /// Whether the terminal may be told of colours.
    colours: bool,
    /// Whether thinking was written last.
    thinking: bool,
}

impl Screen {
    fn thinking(&mut self, piece: &str) -> Result<(), Error> {
        if !self.terminal {
            return Ok(());
        }
        if !std::mem::replace(&mut self.thinking, true) {
            self.output.steer(if self.colours { DIM } else { "(thinking) " })?;
        }
        self.output.piece(piece)
    }

    fn text(&mut self, piece: &str) -> Result<(), Error> {
        self.leave_thinking("\n\n")?;
        self.output.piece(piece)
    }

    fn leave_thinking(&mut self, gap: &str) -> Result<(), Error> {
        if std::mem::replace(&mut self.thinking, false) {
            self.output.steer(if self.colours { PLAIN } else { "" })?;
            self.output.piece(gap)?;
        }
        Ok(())
    }

    fn end(&mut self, closed: bool, remark: Option<&str>) -> Result<(), Error> {
        self.leave_thinking("")?;
        if !closed {
            self.output.piece("\n")?;
        }
        if let Some(remark) = remark.filter(|_| self.terminal) {
            output::note(format_args!("({remark})"));
        }
        Ok(())
    }
}

/// Figures of the last answer and of all, for `/stats`.
#[derive(Default)]
pub struct Told {
    last: Option<ChatEnd>,
    answers: usize,
    prompt_tokens: usize,
    completion_tokens: usize,
    time: Duration,
}

impl Told {
    /// One more answer.
    pub fn add(&mut self, written: &Written) {
        let engine = &written.end.engine;
        self.answers += 1;
        self.prompt_tokens += engine.read_tokens;
        self.completion_tokens += engine.generated_tokens;
        self.time += engine.queue_time + engine.read_time + engine.write_time;
        self.last = Some(written.end.clone());
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = &self.last else { return f.write_str("no answer yet") };
        let rate = |tokens: usize, time: Duration| match time.is_zero() {
            true => String::new(),
            false => format!(", {:.1} tok/s", tokens as f64 / time.as_secs_f64()),
        };
        let engine = &last.engine;
        writeln!(
            f,
            "last: read {} tokens in {:.2} s{}, {} more had been read before; wrote {} tokens in {:.2} s{}, {} of them thinking",
            engine.read_tokens,
            engine.read_time.as_secs_f64(),
            rate(engine.read_tokens, engine.read_time),
            engine.reused_tokens,
            engine.generated_tokens,
            engine.write_time.as_secs_f64(),
            rate(engine.generated_tokens, engine.write_time),
            last.usage.thinking_tokens,
        )?;
        write!(
            f,
            "all: {} answers, {} tokens read, {} written, {:.2} s",
            self.answers,
            self.prompt_tokens,
            self.completion_tokens,
            self.time.as_secs_f64()
        )
    }
}
