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
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::answer::Answer;
use crate::engine::Engine;
use crate::model::Model;
use crate::prefix::{PrefixCache, PrefixCounts};
use crate::request::{EndReason, Ended, Request, RequestError, RequestEvent};
use crate::saved::command::{Command, Reply, SavedError, answer};
use crate::saved::{Load, Loaded, Note, Saved, SavedConversation, SavedName, SavedOptions};
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
    messages: mpsc::Sender<Message>,
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

/// What the engine's thread is told.
enum Message {
    Submission(Submission),
    /// By the threads of saved conversations.
    Note(Note),
    Command(Command),
    /// Nobody submits any more.
    Stop,
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

impl Service {
    /// Hands the engine to a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(engine: Engine, limits: ServiceLimits) -> std::io::Result<Service> {
        Service::start_with(engine, limits, None)
    }

    /// As [`Service::start`], with conversations that outlive it in a folder that nobody else uses: what is kept of them is written
    /// there when an answer ends, when nothing is asked for a while, and when the service ends.
    ///
    /// # Errors
    /// If the system gives no thread, or the folder cannot be made or read or another service has it.
    pub fn start_saving(
        engine: Engine,
        limits: ServiceLimits,
        options: SavedOptions,
    ) -> std::io::Result<Service> {
        Service::start_with(engine, limits, Some(options))
    }

    fn start_with(
        engine: Engine,
        limits: ServiceLimits,
        options: Option<SavedOptions>,
    ) -> std::io::Result<Service> {
        assert!(limits.parallel_max > 0, "a service that answers nobody");
        let model = engine.model().clone();
        let (messages, incoming) = mpsc::channel();
        let notes = messages.clone();
        // Nobody may be there to hear of it any more: then it is found at the next start.
        let tell = move |note| drop(notes.send(Message::Note(note)));
        let saved = options.map(|options| Saved::open(options, model.clone(), tell)).transpose()?;
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
            let prefix = PrefixCache::new(engine.model().prefix_bytes, saved.is_some());
            let running = Running {
                engine,
                limits,
                shared: of_thread,
                waiting: VecDeque::new(),
                loading: Vec::new(),
                running: Vec::new(),
                prefix,
                saved,
                restoring: Vec::new(),
                disk_hangs: false,
                saving: Vec::new(),
            };
            running.run(&incoming);
        })?;
        Ok(Service { model, messages, shared, limits, thread: Some(thread) })
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
        self.messages.send(Message::Submission(submission)).map_err(|_| SubmitError::Stopped)?;
        Ok(Answer::new(receiver, cancelled, submitted, prompt_tokens))
    }

    /// The conversations of this model that are saved, the one used last first.
    ///
    /// # Errors
    /// [`SavedError`]
    pub fn saved(&self) -> Result<Vec<SavedConversation>, SavedError> {
        self.command(Command::List)
    }

    /// Saves what is kept in memory and was not saved yet, and waits for it. What could not be written is in the log.
    ///
    /// # Errors
    /// [`SavedError`]
    pub fn save_all(&self) -> Result<(), SavedError> {
        self.command(Command::SaveAll)
    }

    /// Loads a saved conversation into memory, so that a request that goes on from it need not wait for the disk; returns its
    /// tokens. Only the state at its end is loaded: those of its beginnings stay where they are.
    ///
    /// # Errors
    /// [`SavedError`]
    pub fn restore(&self, name: SavedName) -> Result<usize, SavedError> {
        self.command(|reply| Command::Restore(name, reply))
    }

    /// Removes a saved conversation, from memory too: its beginnings and what went on from it, unless it is being answered.
    ///
    /// # Errors
    /// [`SavedError`]
    pub fn delete_saved(&self, name: SavedName) -> Result<(), SavedError> {
        self.command(|reply| Command::Delete(name, reply))
    }

    fn command<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SavedError> {
        let (reply, answer) = mpsc::channel();
        self.messages.send(Message::Command(command(reply))).map_err(|_| SavedError::Stopped)?;
        answer.recv_timeout(COMMAND_WITHIN).unwrap_or_else(|error| match error {
            mpsc::RecvTimeoutError::Timeout => Err(SavedError::StillBusy { after: COMMAND_WITHIN }),
            mpsc::RecvTimeoutError::Disconnected => Err(SavedError::Stopped),
        })
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
        // The thread may have ended by itself.
        let _ = self.messages.send(Message::Stop);
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

/// How long nothing is asked before what was read of conversations without an answer is saved.
const IDLE_BEFORE_SAVING: Duration = Duration::from_secs(2);

/// And how long between two of them.
const BETWEEN_SAVINGS: Duration = Duration::from_millis(100);

/// A state on disk must save the reading of more tokens than these: loading takes time, too.
const LOADED_TOKENS_MIN: usize = 16;

/// And a copy of a running sequence's state than what is kept: both sides write to blocks of their own then.
const COPIED_TOKENS_MIN: usize = 16;

/// How often those whose states are being loaded are looked at while nothing is computed: they may have had enough.
const LOAD_POLL: Duration = Duration::from_millis(20);

/// How long a caller waits for a command about saved conversations.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);

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
    /// Those whose state is coming from the disk. They wait like the others, but for their place among the running, which is
    /// kept for them: the memory is.
    loading: Vec<Loading>,
    running: Vec<Member>,
    /// What was read before.
    prefix: PrefixCache,
    /// And is on disk.
    saved: Option<Saved>,
    /// Whether a load took too long, and nothing was loaded since: others would wait as long behind it.
    disk_hangs: bool,
    /// Who waits for a conversation to be loaded into memory.
    restoring: Vec<(Load, SavedName, Reply<usize>)>,
    /// Who waits for everything to be written.
    saving: Vec<Reply<()>>,
}

struct Member {
    sequence: Sequence,
    caller: Caller,
    place: Place,
}

struct Loading {
    submission: Submission,
    load: Load,
    /// From then on it reads its prompt instead.
    deadline: Instant,
}

/// Whether there is more to come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    GoOn,
    Stop,
}

impl Running {
    /// Until nobody can submit any more.
    fn run(mut self, incoming: &mpsc::Receiver<Message>) {
        loop {
            if self.receive(incoming) == Flow::Stop {
                self.cancel_all();
                return self.end(incoming);
            }
            // Who has enough leaves its place before others take theirs.
            self.leave_queue();
            self.stop_loading();
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

    /// Takes what has come; where there is nothing to compute, that is waited for. Meanwhile there is time to save.
    fn receive(&mut self, incoming: &mpsc::Receiver<Message>) -> Flow {
        let mut idle = IDLE_BEFORE_SAVING;
        self.save_due();
        while self.running.is_empty() && (self.waiting.is_empty() || self.room() == 0) {
            let message = match (self.loading.is_empty(), self.saved.is_some() && self.prefix.has_unsaved()) {
                (false, _) => incoming.recv_timeout(LOAD_POLL),
                (true, true) => incoming.recv_timeout(idle),
                (true, false) => incoming.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(message) => {
                    if self.take(message) == Flow::Stop {
                        return Flow::Stop;
                    }
                    self.save_due();
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Flow::Stop,
                Err(mpsc::RecvTimeoutError::Timeout) if self.loading.is_empty() => {
                    self.save_one();
                    idle = BETWEEN_SAVINGS;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => break,
            }
        }
        loop {
            let flow = match incoming.try_recv() {
                Ok(message) => self.take(message),
                Err(mpsc::TryRecvError::Empty) => return Flow::GoOn,
                Err(mpsc::TryRecvError::Disconnected) => Flow::Stop,
            };
            if flow == Flow::Stop {
                return flow;
            }
        }
    }

    fn take(&mut self, message: Message) -> Flow {
        match message {
            Message::Submission(submission) => self.waiting.push_back(submission),
            Message::Note(note) => self.hear(note),
            Message::Command(command) => self.obey(command),
            Message::Stop => return Flow::Stop,
        }
        Flow::GoOn
    }

    /// Places that nobody has and nobody waits for with a state on its way.
    fn room(&self) -> usize {
        self.limits.parallel_max.saturating_sub(self.running.len() + self.loading.len())
    }

    /// What a thread of the saved conversations tells.
    fn hear(&mut self, note: Note) {
        let saved = self.saved.as_mut().expect("it has told something");
        let loaded = saved.hear(note);
        if saved.is_free() {
            self.saving.drain(..).for_each(|reply| answer(&reply, Ok(())));
        }
        let Some(Loaded { number, tokens, state, useless }) = loaded else { return };
        self.disk_hangs = false;
        if let Some(at) = self.loading.iter().position(|loading| loading.load.number == number) {
            let Loading { submission, deadline, .. } = self.loading.remove(at);
            match useless {
                true => self.find(submission, deadline),
                false => self.begin(submission, state),
            }
        } else {
            let restoring = self.restoring.iter().position(|(load, ..)| load.number == number);
            let restoring = restoring.map(|at| self.restoring.remove(at));
            let read = state.as_ref().map(State::tokens);
            // Too late for whoever wanted it, but it is here now.
            if let Some(state) = state {
                self.keep(&tokens[..state.tokens()], state);
                self.prefix.is_saved(&tokens);
                self.count_prefix();
            }
            if let Some((_, name, reply)) = restoring {
                answer(&reply, read.ok_or(SavedError::NotLoaded { name }));
            }
        }
    }

    /// Does what is asked about saved conversations. Who asked may have left.
    fn obey(&mut self, command: Command) {
        let Some(saved) = &mut self.saved else {
            match command {
                Command::List(reply) => answer(&reply, Err(SavedError::Off)),
                Command::Restore(_, reply) => answer(&reply, Err(SavedError::Off)),
                Command::SaveAll(reply) | Command::Delete(_, reply) => answer(&reply, Err(SavedError::Off)),
            }
            return;
        };
        match command {
            Command::List(reply) => answer(&reply, Ok(saved.list())),
            Command::SaveAll(reply) => {
                let coming = coming(&self.waiting, &self.limits);
                while let Some(conversation) = self.prefix.unsaved() {
                    saved.write(conversation, &coming);
                }
                match saved.is_free() {
                    true => answer(&reply, Ok(())),
                    false => self.saving.push(reply),
                }
            }
            Command::Restore(name, reply) => match saved.load_named(name) {
                Some(load) => self.restoring.push((load, name, reply)),
                None => answer(&reply, Err(SavedError::Unknown { name })),
            },
            Command::Delete(name, reply) => {
                let deleted = saved.delete(name);
                if let Some(tokens) = &deleted {
                    self.prefix.forget(tokens);
                    self.count_prefix();
                }
                answer(&reply, deleted.map(|_| ()).ok_or(SavedError::Unknown { name }));
            }
        }
    }

    /// Hands a conversation that was not saved to the thread that writes, if that is done with the last one: what it holds
    /// cannot be let go of.
    fn save_one(&mut self) {
        if let Some(saved) = &mut self.saved
            && saved.is_free()
            && let Some(conversation) = self.prefix.unsaved()
        {
            saved.write(conversation, &[]);
        }
    }

    /// The same with one in which an answer has just come to its end: who kills the process loses what is under way and no more.
    /// Others are computed meanwhile.
    fn save_due(&mut self) {
        if let Some(saved) = &mut self.saved
            && saved.is_free()
            && let Some(conversation) = self.prefix.due()
        {
            saved.write(conversation, &coming(&self.waiting, &self.limits));
        }
    }

    /// Has those conversations written that are about to go.
    fn save_leaving(&mut self) {
        let leaving = self.prefix.leaving();
        if let Some(saved) = self.saved.as_mut().filter(|_| !leaving.is_empty()) {
            let coming = coming(&self.waiting, &self.limits);
            leaving.into_iter().for_each(|conversation| saved.write(conversation, &coming));
        }
    }

    /// Keeps a state. What those that wait will go on from stays.
    fn keep(&mut self, tokens: &[u32], state: State) {
        self.prefix.pin(coming(&self.waiting, &self.limits).into_iter());
        self.prefix.keep(tokens, state);
        self.save_leaving();
    }

    /// Saves what is not saved, as far as there is time.
    fn end(mut self, incoming: &mpsc::Receiver<Message>) {
        let Some(saved) = self.saved.take() else { return };
        let notes = |within| loop {
            match incoming.recv_timeout(within) {
                Ok(Message::Note(note)) => return Some(note),
                // Who asks now hears that the engine has stopped.
                Ok(Message::Submission(_) | Message::Command(_) | Message::Stop) => {}
                Err(_) => return None,
            }
        };
        saved.end(|| self.prefix.unsaved(), notes);
    }

    /// The running sequence whose state has read most of a prompt, and how many tokens.
    fn live(&self, prompt: &[u32]) -> Option<(usize, &Sequence)> {
        let live = self.running.iter().map(|Member { sequence, .. }| (sequence.shared(prompt).now, sequence));
        live.max_by_key(|(now, _)| *now)
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

    /// Those who have had enough do not wait for their state, nor do those who waited for too long.
    fn stop_loading(&mut self) {
        let now = Instant::now();
        for at in (0..self.loading.len()).rev() {
            let has_enough = self.loading[at].submission.caller.has_enough();
            if has_enough || self.loading[at].deadline <= now {
                let Loading { submission, .. } = self.loading.remove(at);
                match has_enough {
                    true => submission.end(EndReason::Cancelled),
                    false => {
                        tracing::warn!("a state took too long to be loaded; the prompt is read instead");
                        self.disk_hangs = true;
                        self.begin(submission, None);
                    }
                }
            }
        }
    }

    /// Gives places to those that came first. Who waits for what a running sequence reads has its place, and no state yet; this
    /// is decided anew before every window, so that when the other one has read it, or ended before, nobody needs to say so.
    fn admit(&mut self) {
        self.running.iter_mut().for_each(|member| member.sequence.await_nothing());
        let mut at = 0;
        while at < self.waiting.len() && at < self.room() {
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
            let within = self.saved.as_ref().map_or(Duration::ZERO, |saved| saved.options().load_within);
            self.find(submission, Instant::now() + within);
        }
        let nobody = self.running.is_empty() && self.loading.is_empty();
        assert!(self.waiting.is_empty() || !nobody, "all wait, and nobody runs");
    }

    /// Looks for a state that has read as much of the prompt as any: kept in memory, of a sequence that runs, or on disk.
    fn find(&mut self, submission: Submission, deadline: Instant) {
        let prompt = submission.request.prompt();
        let live = self.live(prompt).map_or(0, |(now, _)| now);
        let known = self.prefix.known(prompt).max(live) + LOADED_TOKENS_MIN;
        let saved = self.saved.as_mut().filter(|_| !self.disk_hangs);
        match saved.and_then(|saved| saved.load(prompt, known)) {
            Some(load) => self.loading.push(Loading { submission, load, deadline }),
            None => self.begin(submission, None),
        }
    }

    /// Gives a request its place among the running, with what was loaded for it if nothing in memory has read more.
    fn begin(&mut self, submission: Submission, loaded: Option<State>) {
        let Submission { request, caller, submitted, place, .. } = submission;
        let (prompt_tokens, queue_time) = (request.prompt_tokens(), submitted.elapsed());
        let prompt = request.prompt();
        let kept = self.prefix.known(prompt);
        let live = self.live(prompt).filter(|(now, _)| *now >= kept + COPIED_TOKENS_MIN);
        let known = live.map_or(kept, |(now, _)| now);
        let loaded = loaded.filter(|state| state.tokens() > known);
        let state = match loaded.or_else(|| live.map(|(now, sequence)| sequence.copy(now))) {
            Some(state) => Ok(state),
            None => {
                let alone = self.running.is_empty() && self.waiting.is_empty() && self.loading.is_empty();
                self.prefix.find(prompt, alone).map_or_else(|| self.engine.model().new_state(), Ok)
            }
        };
        match state {
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
        let kept: Vec<(Vec<u32>, State)> =
            sequences.into_iter().filter_map(|sequence| sequence.kept()).collect();
        kept.into_iter().for_each(|(tokens, state)| self.keep(&tokens, state));
        self.save_leaving();
    }

    fn remove_ended(&mut self) {
        for at in (0..self.running.len()).rev() {
            if self.running[at].sequence.ended().is_some() {
                let Member { sequence, caller, place } = self.running.remove(at);
                // The state is kept or freed and the place given on before the caller hears of the end.
                let (ended, computed) = sequence.finish();
                if let Some((tokens, state)) = computed {
                    self.keep(&tokens, state);
                    self.prefix.ended(&tokens);
                }
                self.count_prefix();
                drop(place);
                self.shared.running.store(self.running.len(), Ordering::Release);
                caller.tell(RequestEvent::Ended(ended));
            }
        }
    }

    fn count_prefix(&self) {
        let PrefixCounts { points, bytes } = self.prefix.counts();
        self.shared.points.store(points, Ordering::Relaxed);
        self.shared.point_bytes.store(bytes, Ordering::Relaxed);
    }

    fn cancel_all(&mut self) {
        let loading = self.loading.drain(..).map(|loading| loading.submission);
        loading.for_each(|submission| submission.end(EndReason::Cancelled));
        self.running.iter_mut().for_each(|member| member.sequence.end(EndReason::Cancelled));
        self.remove_ended();
        self.waiting.drain(..).for_each(|submission| submission.end(EndReason::Cancelled));
    }
}

/// The prompts of those that are next.
fn coming<'a>(waiting: &'a VecDeque<Submission>, limits: &ServiceLimits) -> Vec<&'a [u32]> {
    waiting.iter().take(limits.parallel_max).map(|submission| submission.request.prompt()).collect()
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
