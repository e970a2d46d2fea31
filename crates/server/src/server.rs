//! A running server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use crate::app::{self, Shared};
use crate::guard::Guard;
use crate::listen::{self, Listener};
use crate::model::Model;
use crate::phase::Phase;
use crate::settings::Settings;

/// Threads that parse and tokenize requests: more would only take the cores from the model.
const BLOCKING_THREADS_MAX: usize = 4;

/// A request that is being parsed or tokenized when the server ends has this long to come to its end.
const RUNTIME_TIME: Duration = Duration::from_secs(1);

/// A server on a thread of its own. Until it has its model it says that it is loading.
#[derive(Debug)]
pub struct Server<M> {
    address: SocketAddr,
    shared: Arc<Shared<M>>,
    runtime: Handle,
    thread: JoinHandle<io::Result<()>>,
}

impl<M: Model> Server<M> {
    /// Starts to serve those who wait at `listener`.
    ///
    /// # Errors
    /// The system gives no thread or no sockets.
    pub fn start(listener: Listener, settings: Settings) -> io::Result<Server<M>> {
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()?;
        let guard = Guard::new(settings.api_key.clone(), &listener.host, listener.ip());
        let shared = Arc::new(Shared::new(settings, guard));
        let (address, socket) = (listener.address, listener.socket);
        let handle = runtime.handle().clone();
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("http".into()).spawn(move || {
            let router = app::router(Arc::clone(&serving));
            let ended =
                runtime.block_on(listen::run(socket, router, &serving.settings.limits, &serving.phase));
            runtime.shutdown_timeout(RUNTIME_TIME);
            ended
        })?;
        Ok(Server { address, shared, runtime: handle, thread })
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on it answers.
    ///
    /// # Panics
    /// If it has a model already.
    pub fn ready(&self, model: M) {
        self.shared.ready(model);
    }

    /// The first interrupt or request to terminate stops it as [`Server::stop`] does, the second at once.
    ///
    /// # Errors
    /// The system does not tell of signals.
    pub fn stop_on_signals(&self) -> io::Result<()> {
        let _runtime = self.runtime.enter();
        let mut signals = Signals::new()?;
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            for phase in [Phase::Draining, Phase::Ending] {
                signals.next().await;
                tracing::info!("stopping");
                shared.phase.send_replace(phase);
            }
        });
        Ok(())
    }

    /// Takes no more requests, finishes those it has within the time of its limits, and ends the others in form.
    ///
    /// # Errors
    /// See [`Server::wait`].
    pub fn stop(self) -> io::Result<()> {
        self.shared.phase.send_replace(Phase::Draining);
        self.wait()
    }

    /// Until it has stopped.
    ///
    /// # Errors
    /// The system's, when it began.
    ///
    /// # Panics
    /// If its thread did.
    pub fn wait(self) -> io::Result<()> {
        self.thread.join().expect("a thread that does not panic")
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
