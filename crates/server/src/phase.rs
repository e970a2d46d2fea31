//! How far a server is on its way to its end.

use tokio::sync::watch;

/// How far a server is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It takes requests.
    Serving,
    /// It takes no more, and finishes those it has.
    Draining,
    /// It ends those it still has.
    Ending,
}

/// Waits until this phase is reached, which it also is when nobody is left to say so.
pub(crate) async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// Waits until running answers are to be ended.
pub(crate) async fn ending(phase: &mut watch::Receiver<Phase>) {
    reached(phase, Phase::Ending).await;
}
