//! Where connections come in.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::phase::{Phase, reached};
use crate::settings::Limits;
use crate::socket::Socket;

/// Most bytes of a request's headers, and of what is read ahead of a body.
const HEADERS_BYTES_MAX: usize = 64 << 10;

/// Most headers of a request.
const HEADERS_MAX: usize = 100;

/// When the system has no more sockets, it is asked again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is ended has this long to say so to its client.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// An address on which connections wait from now on.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) host: String,
    pub(crate) address: SocketAddr,
}

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else does.
    #[error(
        "port {port} of {host} is in use by another program: choose another --port, or 0 for any that is free"
    )]
    InUse {
        /// As given.
        host: String,
        /// As given.
        port: u16,
    },
    /// Low ports are reserved, and others may be too.
    #[error("port {port} of {host} may not be used by this user: choose another --port, from 1024 on")]
    Reserved {
        /// As given.
        host: String,
        /// As given.
        port: u16,
    },
    /// It belongs to another machine.
    #[error(
        "{host} is no address of this machine: --host 127.0.0.1 listens to this machine alone, 0.0.0.0 on all addresses"
    )]
    Foreign {
        /// As given.
        host: String,
    },
    /// A name without an address.
    #[error("the name {host} has no address ({source}): give an address as --host, such as 127.0.0.1")]
    Unknown {
        /// As given.
        host: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot listen on port {port} of {host}: {source}")]
    Io {
        /// As given.
        host: String,
        /// As given.
        port: u16,
        /// The system's answer.
        source: io::Error,
    },
}

impl Listener {
    /// Begins to listen; connections wait until a server starts. Port 0 is any that is free.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(host: &str, port: u16) -> Result<Listener, ListenError> {
        let unknown = |source| ListenError::Unknown { host: host.to_owned(), source };
        let addresses: Vec<_> = (bare(host), port).to_socket_addrs().map_err(unknown)?.collect();
        let listen = || {
            let socket = TcpListener::bind(addresses.as_slice())?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, host: bare(host).to_owned(), address })
        };
        listen().map_err(|source| error(host, port, source))
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }
}

/// Addresses of version 6 may come in brackets, as in a URL.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn error(host: &str, port: u16, source: io::Error) -> ListenError {
    let host = host.to_owned();
    match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { host, port },
        io::ErrorKind::PermissionDenied => ListenError::Reserved { host, port },
        io::ErrorKind::AddrNotAvailable => ListenError::Foreign { host },
        _ => ListenError::Io { host, port, source },
    }
}

/// Serves connections until the server is told to stop, and then those that are left for as long as the limits say.
pub(crate) async fn run(
    socket: TcpListener,
    router: Router,
    limits: &Limits,
    phase: &watch::Sender<Phase>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(socket)?;
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    let mut stopped = phase.subscribe();
    loop {
        let accept = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = reached(&mut stopped, Phase::Draining) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let served = connection(stream, router.clone(), limits.clone(), phase.subscribe());
                connections.spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let mut ending = phase.subscribe();
    let rest = tokio::select! {
        () = all(&mut connections) => return Ok(()),
        () = reached(&mut ending, Phase::Ending) => connections.len(),
        () = sleep(limits.stop_time) => connections.len(),
    };
    tracing::info!(connections = rest, "the answers that are still running are ended");
    phase.send_replace(Phase::Ending);
    let _ = timeout(FAREWELL_TIME, all(&mut connections)).await;
    Ok(())
}

async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, router: Router, limits: Limits, mut phase: watch::Receiver<Phase>) {
    // A token is a small packet that should not wait for the next one.
    let _ = stream.set_nodelay(true);
    let socket = Socket::new(stream);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers_time)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(socket.clone()), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let left = async {
        loop {
            // The connection itself sees a client that leaves while it waits for bytes; here are found those of whom
            // bytes of a next request lie unread. Who closes its sending side counts as gone either way.
            sleep(limits.silence_time).await;
            if socket.has_left() {
                return;
            }
        }
    };
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = reached(&mut phase, Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! {
        ended = served => ended,
        () = left => return,
    };
    if let Err(error) = ended {
        // Clients come and go.
        tracing::debug!(%error, "a connection ended early");
    }
}
