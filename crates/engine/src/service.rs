//! An engine on a thread of its own: requests in, events out.
//!
//! The thread owns the engine and every running sequence. A request talks to its caller over a channel that belongs to
//! the two of them; its end record is the last thing in there and a value, so nobody can read another's. Dropping the
//! receiving side cancels, in the queue as well as while the prompt is read.
//!
//! Nothing here waits to send: an event channel has no bound of its own, because the number of its events is bounded by
//! the request's tokens, and a place is taken before the request is sent.
//!
//! A request has one place from its submission to its end, whether it waits or runs, and gives it back before its caller
//! hears of the end: so one number says whether there is room, and who has heard an end may submit again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::engine::Engine;
use crate::error::StepError;
use crate::model::Model;
use crate::prefix::{PrefixCache, PrefixCounts};
use crate::request::{EndReason, Ended, Request, RequestError, RequestEvent};
use crate::saved::{Saved, SavedOptions};
use crate::sequence::{Sequence, ValidRequest};
use crate::state::State;

/// How many requests a [`Service`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Most requests that are answered at the same time, at least 1; each has a state of its own.
    pub parallel_max: usize,
    /// Most requests that wait for a place.
    pub queue_max: usize,
}

/// What a service is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Requests that wait.
    pub queued: usize,
    /// Requests that are being answered.
    pub running: usize,
    /// What is kept of conversations.
    pub prefix: PrefixCounts,
    /// False once the engine's thread has ended: nothing is answered any more.
    pub alive: bool,
}

/// A request was not taken.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum SubmitError {
    /// The request makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Too many wait.
    #[error("{queue_max} requests are waiting already, the most there may be: try again later")]
    QueueFull {
        /// The limit.
        queue_max: usize,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// The door to an engine. Dropping it cancels what runs and ends the thread.
pub struct Service {
    model: Arc<Model>,
    /// Absent only while the service is dropped.
    submissions: Option<mpsc::Sender<Submission>>,
    shared: Arc<Shared>,
    limits: ServiceLimits,
    thread: Option<JoinHandle<()>>,
}

/// Counts that both sides see. Nothing but figures: no request reads its own results here.
struct Shared {
    /// Requests that wait or run.
    taken: AtomicUsize,
    /// Of these, those that run.
    running: AtomicUsize,
    /// States kept of conversations, and their bytes.
    points: AtomicUsize,
    point_bytes: AtomicUsize,
    alive: AtomicBool,
}

struct Submission {
    request: ValidRequest,
    caller: Caller,
    submitted: Instant,
    place: Place,
    /// It has begun to wait for what a running sequence reads.
    waits: bool,
}

impl Submission {
    /// Ends it before its turn came.
    fn end(self, reason: EndReason) {
        let Submission { request, caller, submitted, place, .. } = self;
        drop(place);
        caller.tell(RequestEvent::Ended(unread(reason, request.prompt_tokens(), submitted.elapsed())));
    }
}

/// The engine's side of a request's channel.
struct Caller {
    events: UnboundedSender<RequestEvent>,
    cancelled: Arc<AtomicBool>,
}

impl Caller {
    /// Nobody may be there to hear it: then the next step sees that.
    fn tell(&self, event: RequestEvent) {
        let _ = self.events.send(event);
    }

    fn has_enough(&self) -> bool {
        self.events.is_closed() || self.cancelled.load(Ordering::Acquire)
    }
}

/// A place in the queue, then among the running; given back when dropped.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request's own events. Dropping it cancels the request.
///
/// The last event is [`RequestEvent::Ended`], once, whatever happens to the engine.
#[derive(Debug)]
pub struct Answer {
    events: UnboundedReceiver<RequestEvent>,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    /// What the end record would say if the engine broke down now; none once the end was handed out.
    unended: Option<Progress>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    prompt_tokens: usize,
    reused_tokens: usize,
    read_tokens: usize,
    generated_tokens: usize,
    queue_time: Option<Duration>,
    read_time: Option<Duration>,
}

impl Answer {
    /// Stops the answer as soon as the engine hears of it; its end comes as an event.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// The next event, waited for; nothing after [`RequestEvent::Ended`].
    ///
    /// # Panics
    /// On a thread that runs asynchronous tasks, which it would hold up.
    pub fn next_blocking(&mut self) -> Option<RequestEvent> {
        self.unended?;
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// As [`Answer::next_blocking`], for asynchronous tasks. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        self.unended?;
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// Follows an event; a channel that was closed without an end becomes one.
    fn note(&mut self, event: Option<RequestEvent>) -> RequestEvent {
        let elapsed = self.submitted.elapsed();
        let progress = self.unended.as_mut().expect("no event after the end");
        match &event {
            Some(RequestEvent::Admitted { reused_tokens }) => {
                progress.queue_time = Some(elapsed);
                progress.reused_tokens = *reused_tokens;
            }
            Some(RequestEvent::Read { tokens }) => progress.read_tokens = tokens - progress.reused_tokens,
            Some(RequestEvent::Token(_)) => {
                progress.generated_tokens += 1;
                progress.read_time.get_or_insert(elapsed - progress.queue_time.unwrap_or_default());
            }
            Some(RequestEvent::Ended(_)) | None => {}
        }
        let progress = *progress;
        let event = event.unwrap_or_else(|| RequestEvent::Ended(progress.broken(elapsed)));
        if matches!(event, RequestEvent::Ended(_)) {
            self.unended = None;
        }
        event
    }
}

impl Progress {
    fn broken(self, elapsed: Duration) -> Ended {
        let queue_time = self.queue_time.unwrap_or(elapsed);
        let read_time = self.read_time.unwrap_or(elapsed - queue_time);
        Ended {
            reason: EndReason::Failed(RequestError::EngineGone),
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused_tokens,
            read_tokens: self.read_tokens,
            generated_tokens: self.generated_tokens,
            queue_time,
            read_time,
            write_time: elapsed - queue_time - read_time,
        }
    }
}

impl Service {
    /// Hands the engine to a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(engine: Engine, limits: ServiceLimits) -> std::io::Result<Service> {
        Service::start_with(engine, limits, None)
    }

    /// As [`Service::start`], with conversations that outlive it in a folder: what is kept of them is written there when nothing
    /// is asked for a while, and when the service ends.
    ///
    /// # Errors
    /// If the system gives no thread, or the folder cannot be made or read.
    pub fn start_saving(
        engine: Engine,
        limits: ServiceLimits,
        options: SavedOptions,
    ) -> std::io::Result<Service> {
        let saved = Saved::open(options, engine.model().clone())?;
        Service::start_with(engine, limits, Some(saved))
    }

    fn start_with(engine: Engine, limits: ServiceLimits, saved: Option<Saved>) -> std::io::Result<Service> {
        assert!(limits.parallel_max > 0, "a service that answers nobody");
        let model = engine.model().clone();
        let (submissions, incoming) = mpsc::channel();
        let shared = Arc::new(Shared {
            taken: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            points: AtomicUsize::new(0),
            point_bytes: AtomicUsize::new(0),
            alive: AtomicBool::new(true),
        });
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("engine".into()).spawn(move || {
            let _alive = Alive(of_thread.clone());
            let prefix = PrefixCache::new(engine.model().prefix_bytes);
            let (waiting, running) = (VecDeque::new(), Vec::new());
            Running { engine, limits, shared: of_thread, waiting, running, prefix, saved }.run(&incoming);
        })?;
        Ok(Service { model, submissions: Some(submissions), shared, limits, thread: Some(thread) })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// How many requests it takes.
    pub fn limits(&self) -> ServiceLimits {
        self.limits
    }

    /// What it is doing just now.
    pub fn counts(&self) -> ServiceCounts {
        let running = self.shared.running.load(Ordering::Acquire);
        ServiceCounts {
            // The two numbers change one after the other.
            queued: self.shared.taken.load(Ordering::Acquire).saturating_sub(running),
            running,
            prefix: PrefixCounts {
                points: self.shared.points.load(Ordering::Relaxed),
                bytes: self.shared.point_bytes.load(Ordering::Relaxed),
            },
            alive: self.shared.alive.load(Ordering::Acquire),
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was computed then.
    pub fn submit(&self, request: Request) -> Result<Answer, SubmitError> {
        let request = ValidRequest::new(request, &self.model)?;
        let place = self.place()?;
        let (events, receiver) = unbounded_channel();
        let (submitted, prompt_tokens) = (Instant::now(), request.prompt_tokens());
        let cancelled = Arc::new(AtomicBool::new(false));
        let caller = Caller { events, cancelled: cancelled.clone() };
        let submission = Submission { request, caller, submitted, place, waits: false };
        let submissions = self.submissions.as_ref().expect("present until dropped");
        submissions.send(submission).map_err(|_| SubmitError::Stopped)?;
        let unended = Progress {
            prompt_tokens,
            reused_tokens: 0,
            read_tokens: 0,
            generated_tokens: 0,
            queue_time: None,
            read_time: None,
        };
        Ok(Answer { events: receiver, cancelled, submitted, unended: Some(unended) })
    }

    fn place(&self) -> Result<Place, SubmitError> {
        let ServiceLimits { parallel_max, queue_max } = self.limits;
        // One number decides: with one for those that wait and one for those that run, a request on its way from here to
        // there would be counted twice or not at all.
        let more = |taken: usize| (taken < parallel_max.saturating_add(queue_max)).then_some(taken + 1);
        match self.shared.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Place(self.shared.clone())),
            Err(_) => Err(SubmitError::QueueFull { queue_max }),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.submissions = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Says that the thread has ended, in whatever way it does.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.running.store(0, Ordering::Release);
        self.0.alive.store(false, Ordering::Release);
    }
}

/// How long nothing is asked before conversations are saved.
const IDLE_BEFORE_SAVING: Duration = Duration::from_secs(2);

/// And how long between two of them.
const BETWEEN_SAVINGS: Duration = Duration::from_millis(100);

/// A state on disk must save the reading of more tokens than these: loading takes time, too.
const LOADED_TOKENS_MIN: usize = 16;

/// And a copy of a running sequence's state than what is kept: both sides write to blocks of their own then.
const COPIED_TOKENS_MIN: usize = 16;

/// A request waits for what another one reads where that saves it the reading of so many tokens. Fewer are read beside the other's
/// in about the time of a window, and up to one window is what waiting may cost: the rest of its prompt is read after the
/// common beginning in place of beside it.
const AWAITED_TOKENS_MIN: usize = 64;

/// What the engine's thread owns.
struct Running {
    engine: Engine,
    limits: ServiceLimits,
    shared: Arc<Shared>,
    waiting: VecDeque<Submission>,
    running: Vec<Member>,
    /// What was read before.
    prefix: PrefixCache,
    /// And is on disk.
    saved: Option<Saved>,
}

struct Member {
    sequence: Sequence,
    caller: Caller,
    place: Place,
}

impl Running {
    /// Until nobody can submit any more.
    fn run(mut self, incoming: &mpsc::Receiver<Submission>) {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                match self.wait(incoming) {
                    Some(submission) => self.waiting.push_back(submission),
                    None => return self.save(),
                }
            }
            loop {
                match incoming.try_recv() {
                    Ok(submission) => self.waiting.push_back(submission),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        self.cancel_all();
                        return self.save();
                    }
                }
            }
            // Who has enough leaves its place before others take theirs.
            self.leave_queue();
            for member in &mut self.running {
                if member.caller.has_enough() {
                    member.sequence.end(EndReason::Cancelled);
                }
            }
            self.remove_ended();
            self.admit();
            self.step();
            self.remove_ended();
        }
    }

    /// The next submission; nothing once nobody can submit any more. Meanwhile there is time to save.
    fn wait(&mut self, incoming: &mpsc::Receiver<Submission>) -> Option<Submission> {
        let mut idle = IDLE_BEFORE_SAVING;
        while self.saved.is_some() && self.prefix.has_unsaved() {
            match incoming.recv_timeout(idle) {
                Ok(submission) => return Some(submission),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => self.save_one(),
            }
            idle = BETWEEN_SAVINGS;
        }
        incoming.recv().ok()
    }

    /// Hands a conversation that was not saved to the thread that writes, if that is done with the last one: what it holds
    /// cannot be let go of.
    fn save_one(&mut self) {
        if let Some(saved) = &mut self.saved
            && saved.is_free()
            && let Some(conversation) = self.prefix.unsaved()
        {
            saved.write(conversation);
        }
    }

    /// All of them, at the end, when nothing more is kept.
    fn save(&mut self) {
        if let Some(saved) = &mut self.saved {
            while let Some(conversation) = self.prefix.unsaved() {
                saved.write(conversation);
            }
        }
    }

    /// A state that has read as much of the prompt as any: kept in memory, of a sequence that runs, or on disk.
    fn state(&mut self, prompt: &[u32]) -> Result<State, StepError> {
        let kept = self.prefix.find(prompt);
        let known = kept.as_ref().map_or(0, State::tokens);
        let live = self.running.iter().map(|member| (member.sequence.shared(prompt).now, member));
        let live = live.max_by_key(|(now, _)| *now).filter(|(now, _)| *now >= known + COPIED_TOKENS_MIN);
        let known = live.as_ref().map_or(known, |(now, _)| *now) + LOADED_TOKENS_MIN;
        if let Some(state) = self.saved.as_mut().and_then(|saved| saved.find(prompt, known)) {
            return Ok(state);
        }
        match live.map(|(now, member)| member.sequence.copy(now)).or(kept) {
            Some(state) => Ok(state),
            None => self.engine.model().new_state(),
        }
    }

    /// A running sequence that is just reading what this prompt begins with, and how far: where going on from there saves
    /// `tokens_min` or more of what would have to be read now, and the other one has no more left until then.
    fn leader(&self, prompt: &[u32], tokens_min: usize) -> Option<(usize, usize)> {
        let mut known = None;
        let leaders = self.running.iter().enumerate().filter_map(|(at, Member { sequence, .. })| {
            let (read, later) = (sequence.read_tokens(), sequence.shared(prompt).later);
            if !sequence.is_reading() || later < read + tokens_min {
                return None;
            }
            let known = *known.get_or_insert_with(|| {
                let saved = self.saved.as_ref().map_or(0, |saved| saved.known(prompt));
                self.prefix.known(prompt).max(saved)
            });
            (known <= read).then_some((later, read, at))
        });
        leaders.max().map(|(later, _, at)| (at, later))
    }

    /// Ends those that have had enough before their turn came.
    fn leave_queue(&mut self) {
        if self.waiting.iter().any(|submission| submission.caller.has_enough()) {
            let (leaving, staying): (VecDeque<_>, VecDeque<_>) =
                self.waiting.drain(..).partition(|submission| submission.caller.has_enough());
            self.waiting = staying;
            leaving.into_iter().for_each(|submission| submission.end(EndReason::Cancelled));
        }
    }

    /// Gives places to those that came first. Who waits for what a running sequence reads has its place, and no state yet; this
    /// is decided anew before every window, so that when the other one has read it, or ended before, nobody needs to say so.
    fn admit(&mut self) {
        self.running.iter_mut().for_each(|member| member.sequence.await_nothing());
        let mut at = 0;
        while at < self.waiting.len() && self.running.len() + at < self.limits.parallel_max {
            let Submission { request, waits, .. } = &self.waiting[at];
            // Who has waited so long waits for the rest, too.
            let tokens_min = if *waits { 1 } else { AWAITED_TOKENS_MIN };
            if let Some((leader, tokens)) = self.leader(request.prompt(), tokens_min) {
                self.running[leader].sequence.await_at(tokens);
                self.waiting[at].waits = true;
                at += 1;
                continue;
            }
            let submission = self.waiting.remove(at).expect("one that waits");
            self.begin(submission);
        }
        assert!(self.waiting.is_empty() || !self.running.is_empty(), "all wait, and nobody runs");
    }

    fn begin(&mut self, Submission { request, caller, submitted, place, .. }: Submission) {
        let (prompt_tokens, queue_time) = (request.prompt_tokens(), submitted.elapsed());
        match self.state(request.prompt()) {
            Ok(state) => {
                self.tell_parting(&request, state.tokens());
                let mut sequence = Sequence::new(request, state, queue_time);
                if self.prefix.is_off() {
                    sequence.keep_nothing();
                }
                caller.tell(RequestEvent::Admitted { reused_tokens: sequence.reused_tokens() });
                self.running.push(Member { sequence, caller, place });
                self.shared.running.store(self.running.len(), Ordering::Release);
            }
            Err(error) => {
                drop(place);
                let reason = EndReason::Failed(error.into());
                caller.tell(RequestEvent::Ended(unread(reason, prompt_tokens, queue_time)));
            }
        }
    }

    /// Says where a prompt parts from what was read before, for whoever wonders why it is read again. Figures only.
    fn tell_parting(&self, request: &ValidRequest, reused: usize) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let Some((common, known)) = self.prefix.nearest(request.prompt()) else { return };
        let tokens = request.prompt_tokens();
        let parting = if common == tokens {
            "has all of it".to_owned()
        } else {
            let (message, messages) = request.message_of(common);
            format!("parts from it at token {common}, in message {message} of {messages}, counted from 0")
        };
        tracing::info!(
            "a prompt of {tokens} tokens, {reused} of them read before; the nearest known one, of {known} tokens, {parting}"
        );
    }

    fn step(&mut self) {
        let mut sequences = Vec::with_capacity(self.running.len());
        let mut callers = Vec::with_capacity(self.running.len());
        for Member { sequence, caller, .. } in &mut self.running {
            sequences.push(sequence);
            callers.push(&*caller);
        }
        let prefix = &mut self.prefix;
        let emit = &mut |index: usize, event| callers[index].tell(event);
        self.engine.step(&mut sequences, emit, &mut || prefix.evict());
        for sequence in sequences {
            if let Some((tokens, state)) = sequence.kept() {
                self.prefix.keep(tokens, state);
            }
        }
    }

    fn remove_ended(&mut self) {
        for at in (0..self.running.len()).rev() {
            if self.running[at].sequence.ended().is_some() {
                let Member { sequence, caller, place } = self.running.remove(at);
                // The state is kept or freed and the place given on before the caller hears of the end.
                let (ended, computed) = sequence.finish();
                if let Some((tokens, state)) = computed {
                    self.prefix.keep(&tokens, state);
                }
                let PrefixCounts { points, bytes } = self.prefix.counts();
                self.shared.points.store(points, Ordering::Relaxed);
                self.shared.point_bytes.store(bytes, Ordering::Relaxed);
                drop(place);
                self.shared.running.store(self.running.len(), Ordering::Release);
                caller.tell(RequestEvent::Ended(ended));
            }
        }
    }

    fn cancel_all(&mut self) {
        self.running.iter_mut().for_each(|member| member.sequence.end(EndReason::Cancelled));
        self.remove_ended();
        self.waiting.drain(..).for_each(|submission| submission.end(EndReason::Cancelled));
    }
}

/// The end of a request of which nothing was read.
fn unread(reason: EndReason, prompt_tokens: usize, queue_time: Duration) -> Ended {
    Ended {
        reason,
        prompt_tokens,
        reused_tokens: 0,
        read_tokens: 0,
        generated_tokens: 0,
        queue_time,
        read_time: Duration::ZERO,
        write_time: Duration::ZERO,
    }
}
