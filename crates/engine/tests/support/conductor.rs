//! A service whose engine stands still between its steps. What happens before which step is then the test's own choice,
//! and no thread's: a failure is a seed.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use engine::{Answer, Request, RequestEvent, RowPolicy, Service, Verdict};

/// Holds the engine still after each token of a request that runs all the time.
pub struct Conductor {
    answer: Answer,
    reached: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
    /// Tokens of its request so far: steps.
    pub steps: usize,
}

struct Beat {
    reached: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl RowPolicy for Beat {
    fn advance(&mut self, _token: u32) -> Verdict {
        // Once the test is done with it, nothing holds it up.
        let _ = self.reached.send(());
        let _ = self.go_on.recv();
        Verdict::GoOn
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

impl Conductor {
    /// Submits `request` with a policy of its own to an idle service, and returns when the engine stands still.
    pub fn start(service: &Service, request: Request) -> Conductor {
        let (reached, on_reached) = mpsc::channel();
        let (let_go, go_on) = mpsc::channel();
        let request = Request { policy: Box::new(Beat { reached, go_on }), ..request };
        let answer = service.submit(request).expect("an idle service");
        on_reached.recv().expect("its first token");
        Conductor { answer, reached: on_reached, go_on: let_go, steps: 1 }
    }

    /// Lets the engine take one step. What was submitted, cancelled and dropped before is seen in it.
    pub fn step(&mut self) {
        self.go_on.send(()).expect("the engine waits");
        self.reached.recv().expect("a token more");
        self.steps += 1;
    }

    /// Ends its request with the next step; the engine does not stand still any more. All its events.
    pub fn stop(mut self) -> Vec<RequestEvent> {
        self.answer.cancel();
        drop((self.go_on, self.reached));
        std::iter::from_fn(|| self.answer.next_blocking()).collect()
    }
}

/// The next event, if it is there. While the engine stands still, nothing more comes.
pub fn event(answer: &mut Answer) -> Option<RequestEvent> {
    match pin!(answer.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(event) => event,
        Poll::Pending => None,
    }
}
