//! An answer as server-sent events.
//!
//! The reader pulls: nothing is made before there is room for it, and what the model writes meanwhile waits in the answer's
//! own channel. A reader that leaves drops the stream, with it the answer, and so ends the work.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use chat::{ChatEnd, ChatEvent};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::fault::Fault;
use crate::model::Answer;
use crate::openai::{self, reply::Reply};
use crate::phase::{self, Phase};
use crate::record::Record;

/// The events of an answer, as the body of a response. `silence` sees to its signs of life.
pub(crate) fn body<A: Answer>(
    answer: A,
    reply: Reply,
    record: Record,
    phase: watch::Receiver<Phase>,
    mut silence: Interval,
) -> Body {
    silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
    silence.reset();
    let opening = reply.opening().map(|piece| event(&piece));
    let streaming = Streaming { answer: Some(answer), opening, reply, record, phase, silence, read: None };
    Body::from_stream(stream::unfold(streaming, Streaming::next))
}

/// Ticks that tell of silence.
pub(crate) fn silence(limits: &crate::settings::Limits) -> Interval {
    interval(limits.silence_time)
}

struct Streaming<A> {
    /// Until it has ended.
    answer: Option<A>,
    /// Until it is sent.
    opening: Option<String>,
    reply: Reply,
    record: Record,
    phase: watch::Receiver<Phase>,
    silence: Interval,
    /// Tokens of the prompt that were read, and all of them.
    read: Option<(usize, usize)>,
}

impl<A: Answer> Streaming<A> {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Streaming<A>)> {
        let text = match self.opening.take() {
            Some(opening) => opening,
            None => self.piece().await?,
        };
        self.silence.reset();
        Some((Ok(text.into()), self))
    }

    async fn piece(&mut self) -> Option<String> {
        loop {
            let answer = self.answer.as_mut()?;
            let next = tokio::select! {
                next = answer.next() => next,
                () = phase::ending(&mut self.phase) => return Some(self.fail(Fault::stopping())),
                _ = self.silence.tick() => return Some(self.sign_of_life()),
            };
            match next {
                Some(ChatEvent::Reading { done, of }) => self.read = Some((done, of)),
                Some(ChatEvent::Thinking(text)) => return Some(event(&self.reply.thinking(&text))),
                Some(ChatEvent::Text(text)) => return Some(event(&self.reply.text(&text))),
                Some(ChatEvent::End(end)) => return Some(self.end(&end)),
                None => return Some(self.fail(openai::no_end())),
            }
        }
    }

    /// A comment: every reader of events skips it.
    fn sign_of_life(&self) -> String {
        match self.read {
            Some((done, of)) if done < of => format!(": {done} of {of} tokens of the prompt are read\n\n"),
            _ => ": waiting\n\n".to_owned(),
        }
    }

    fn end(&mut self, end: &ChatEnd) -> String {
        let finish = match openai::finish(end) {
            Ok(finish) => finish,
            Err(fault) => return self.fail(fault),
        };
        self.answer = None;
        self.record.answered(end);
        let (closing, usage) = self.reply.closing(finish, end.usage);
        let mut text = event(&closing);
        text.extend(usage.map(|usage| event(&usage)));
        text + "data: [DONE]\n\n"
    }

    /// The status was sent long ago, so that this is all that can be done.
    fn fail(&mut self, fault: Fault) -> String {
        self.answer = None;
        self.record.failed(&fault);
        event(&openai::error::body(&fault))
    }
}

/// JSON has no line ends of its own, so that one line of data is enough.
fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}
