//! The bodies of requests: whole, within a size, within a time, and all of them together within the memory set aside.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::fault::{Fault, Kind};
use crate::settings::Limits;

/// Memory is set aside in pieces of this size.
const PIECE_BYTES: usize = 1 << 10;

/// A body must come this fast, after the time that every body has.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// What comes of a body that is refused is thrown away for this long: a client that is still sending when the connection
/// closes would not see why.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// Memory for the bodies of all requests at once.
#[derive(Debug)]
pub(crate) struct Bodies {
    pieces: Arc<Semaphore>,
    bytes_max: usize,
    time: Duration,
}

/// A body, and its part of the memory.
#[derive(Debug)]
pub(crate) struct Whole {
    /// What came.
    pub bytes: Vec<u8>,
    _memory: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Room as these limits say.
    pub fn new(limits: &Limits) -> Bodies {
        let pieces = limits.bodies_bytes_max.div_ceil(PIECE_BYTES).min(Semaphore::MAX_PERMITS);
        Bodies {
            pieces: Arc::new(Semaphore::new(pieces)),
            bytes_max: limits.body_bytes_max,
            time: limits.body_time,
        }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    /// It is too large, whether it says so or not; it comes too slowly or not whole; the memory is taken.
    pub async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<Whole, Fault> {
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let announced: Option<u64> = announced.and_then(|text| text.parse().ok());
        if announced.or(body.size_hint().exact()).is_some_and(|bytes| bytes > self.bytes_max as u64) {
            // A client that asked before it sends has sent nothing.
            if !headers.contains_key(header::EXPECT) {
                throw_away(body).await;
            }
            return Err(self.too_large());
        }
        let start = Instant::now();
        let mut whole = Whole { bytes: Vec::new(), _memory: None };
        loop {
            let time = self.time + Duration::from_secs(whole.bytes.len() as u64 / BYTES_PER_SECOND_MIN);
            let frame = match timeout_at(start + time, body.frame()).await {
                Err(_) => return Err(Fault::new(Kind::Slow, "the body of the request came too slowly")),
                Ok(None) => return Ok(whole),
                Ok(Some(Err(_))) => {
                    return Err(Fault::new(Kind::Invalid, "the body of the request did not come whole"));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            // Trailers say nothing here.
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > self.bytes_max - whole.bytes.len() {
                drop(whole);
                throw_away(body).await;
                return Err(self.too_large());
            }
            self.set_aside(&mut whole, data.len())?;
            whole.bytes.extend_from_slice(&data);
        }
    }

    fn too_large(&self) -> Fault {
        let message =
            format!("the body of the request is larger than the {} bytes that are taken", self.bytes_max);
        Fault::new(Kind::TooLarge, message)
    }

    /// Memory for `more` bytes.
    fn set_aside(&self, whole: &mut Whole, more: usize) -> Result<(), Fault> {
        let held = whole._memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (whole.bytes.len() + more).div_ceil(PIECE_BYTES).saturating_sub(held);
        let busy = || Fault::new(Kind::Busy, "the server reads too many large requests at once; try again");
        let missing = u32::try_from(missing).map_err(|_| busy())?;
        let memory = Arc::clone(&self.pieces).try_acquire_many_owned(missing).map_err(|_| busy())?;
        match &mut whole._memory {
            None => whole._memory = Some(memory),
            Some(held) => held.merge(memory),
        }
        Ok(())
    }
}

async fn throw_away(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(FAREWELL_TIME, rest).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use axum::body::Bytes;
    use futures_util::stream;

    fn bodies(body_bytes_max: usize, bodies_bytes_max: usize) -> Bodies {
        Bodies::new(&Limits { body_bytes_max, bodies_bytes_max, ..Limits::default() })
    }

    /// `pieces` of `bytes`, each after a pause.
    fn coming(pieces: usize, bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |sent| async move {
            tokio::time::sleep(pause).await;
            let piece = Bytes::from(vec![b' '; bytes]);
            (sent < pieces).then_some((Ok::<_, Infallible>(piece), sent + 1))
        }))
    }

    async fn read(bodies: &Bodies, body: Body) -> Result<usize, Kind> {
        bodies.read(&HeaderMap::new(), body).await.map(|whole| whole.bytes.len()).map_err(|fault| fault.kind)
    }

    #[tokio::test(start_paused = true)]
    async fn size_is_bounded_announced_or_not() {
        let bodies = bodies(100, 1 << 20);
        assert_eq!(read(&bodies, Body::from(vec![0; 100])).await, Ok(100));
        assert_eq!(read(&bodies, Body::from(vec![0; 101])).await, Err(Kind::TooLarge));
        assert_eq!(read(&bodies, coming(100, 1, Duration::from_millis(1))).await, Ok(100));
        assert_eq!(read(&bodies, coming(usize::MAX, 3, Duration::from_millis(1))).await, Err(Kind::TooLarge));
    }

    /// One byte a second holds a connection for as long as the sender likes.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        let bodies = bodies(1 << 20, 1 << 20);
        assert_eq!(read(&bodies, coming(usize::MAX, 1, Duration::from_secs(1))).await, Err(Kind::Slow));
        assert_eq!(read(&bodies, coming(1, 1, Duration::from_secs(3600))).await, Err(Kind::Slow));
        // Slow, and yet a megabyte that somebody sends over a bad line.
        assert_eq!(read(&bodies, coming(16, 1 << 16, Duration::from_secs(2))).await, Ok(1 << 20));
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded() {
        let bodies = bodies(3 << 10, 4 << 10);
        let first = bodies.read(&HeaderMap::new(), Body::from(vec![0; 3 << 10])).await.expect("room");
        assert_eq!(read(&bodies, Body::from(vec![0; 1025])).await, Err(Kind::Busy));
        assert_eq!(read(&bodies, Body::from(vec![0; 1024])).await, Ok(1024));
        drop(first);
        assert_eq!(read(&bodies, Body::from(vec![0; 3 << 10])).await, Ok(3 << 10));
    }
}
