//! Paths and what happens on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use chat::{ChatError, ChatEvent, Sampling};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::body::Bodies;
use crate::fault::{Fault, Kind};
use crate::guard::Guard;
use crate::model::{Answer, Counts, Model};
use crate::openai::reply::{Content, Endpoint, Reply};
use crate::openai::{self, request};
use crate::phase::{self, Phase};
use crate::record::Record;
use crate::settings::Settings;
use crate::stream;

/// Seconds after which a request that found no room may be sent again.
const RETRY_AFTER_S: &str = "2";

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared<M> {
    pub settings: Settings,
    pub phase: watch::Sender<Phase>,
    guard: Guard,
    bodies: Bodies,
    model: OnceLock<Arc<M>>,
    /// Names of answers begin with one that no other server had and go on in order.
    first_id: u64,
    ids: AtomicU64,
    started_s: u64,
}

impl<M: Model> Shared<M> {
    /// Without its model yet.
    pub fn new(settings: Settings, guard: Guard) -> Shared<M> {
        Shared {
            bodies: Bodies::new(&settings.limits),
            settings,
            phase: watch::channel(Phase::Serving).0,
            guard,
            model: OnceLock::new(),
            first_id: request::any_seed(),
            ids: AtomicU64::new(0),
            started_s: now_s(),
        }
    }

    /// From now on requests are answered.
    ///
    /// # Panics
    /// If there is a model already.
    pub fn ready(&self, model: M) {
        assert!(self.model.set(Arc::new(model)).is_ok(), "one model for each server");
    }

    fn model(&self) -> Result<&Arc<M>, Fault> {
        if *self.phase.borrow() > Phase::Serving {
            return Err(Fault::stopping());
        }
        let loading = || Fault::new(Kind::Loading, "the model is still being loaded; try again soon");
        self.model.get().ok_or_else(loading)
    }

    fn sampling(&self) -> Sampling {
        let Settings { sampling, seed, .. } = &self.settings;
        Sampling { seed: seed.unwrap_or_else(request::any_seed), ..sampling.clone() }
    }

    fn reply(&self, endpoint: Endpoint) -> Reply {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        Reply {
            endpoint,
            id: format!("{prefix}-{:08x}{number:08x}", self.first_id),
            created_s: now_s(),
            model: self.settings.model_name.clone(),
            stream_usage: false,
        }
    }
}

/// All paths.
pub(crate) fn router<M: Model>(shared: Arc<Shared<M>>) -> Router {
    Router::new()
        .route("/health", get(health::<M>))
        .route("/v1/models", get(models::<M>))
        .route("/v1/models/{*name}", get(model::<M>))
        .route("/v1/chat/completions", post(chat_completions::<M>))
        .route("/v1/completions", post(completions::<M>))
        .fallback(async || refused(&Fault::new(Kind::NotFound, "there is nothing at this path")))
        .method_not_allowed_fallback(async || {
            refused(&Fault::new(Kind::Method, "this path is not asked by this method"))
        })
        .layer(from_fn_with_state(Arc::clone(&shared), admit::<M>))
        .with_state(shared)
}

async fn admit<M: Model>(State(shared): State<Arc<Shared<M>>>, request: Request, next: Next) -> Response {
    let admitted = shared.guard.admit(&request).and_then(|()| match request.uri().path() {
        // Whether a server lives is no secret, and who only wants to know has no key.
        "/health" => Ok(()),
        _ => shared.guard.check_key(request.headers()),
    });
    match admitted {
        Ok(()) => next.run(request).await,
        Err(fault) => {
            tracing::warn!(
                status = openai::error::status(fault.kind).as_u16(),
                reason = fault.message,
                "refused"
            );
            refused(&fault)
        }
    }
}

async fn health<M: Model>(State(shared): State<Arc<Shared<M>>>) -> Response {
    let down = |status| json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": status}));
    if *shared.phase.borrow() > Phase::Serving {
        return down("stopping");
    }
    match shared.model.get() {
        None => down("loading"),
        Some(model) => match model.counts() {
            Counts { alive: false, .. } => down("failed"),
            Counts { queued, running, parallel_max, .. } => {
                let body = json!({"status": "ok", "queued": queued, "running": running, "parallel_max": parallel_max});
                json_response(StatusCode::OK, &body)
            }
        },
    }
}

async fn models<M: Model>(State(shared): State<Arc<Shared<M>>>) -> Response {
    match description(&shared) {
        Ok(model) => json_response(StatusCode::OK, &openai::models::list(model)),
        Err(fault) => refused(&fault),
    }
}

async fn model<M: Model>(
    State(shared): State<Arc<Shared<M>>>,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    // What is no text is no name either.
    let known = name.is_ok_and(|Path(name)| name == shared.settings.model_name);
    let named = description(&shared).and_then(|model| match known {
        true => Ok(model),
        false => Err(Fault::new(
            Kind::NotFound,
            "there is no model of this name; /v1/models lists those there are",
        )),
    });
    match named {
        Ok(model) => json_response(StatusCode::OK, &model),
        Err(fault) => refused(&fault),
    }
}

fn description<M: Model>(shared: &Shared<M>) -> Result<Value, Fault> {
    let context_tokens = shared.model()?.context_tokens();
    Ok(openai::models::model(&shared.settings.model_name, shared.started_s, context_tokens))
}

async fn chat_completions<M: Model>(shared: State<Arc<Shared<M>>>, request: Request) -> Response {
    respond(&shared, Endpoint::Chat, request).await
}

async fn completions<M: Model>(shared: State<Arc<Shared<M>>>, request: Request) -> Response {
    respond(&shared, Endpoint::Completions, request).await
}

async fn respond<M: Model>(shared: &Arc<Shared<M>>, endpoint: Endpoint, request: Request) -> Response {
    let reply = shared.reply(endpoint);
    let path = match endpoint {
        Endpoint::Chat => "/v1/chat/completions",
        Endpoint::Completions => "/v1/completions",
    };
    let mut record = Record::new(reply.id.clone(), path);
    let taken = take(shared, endpoint, request).await;
    let (mut answer, stream, stream_usage) = match taken {
        Ok(taken) => taken,
        Err(fault) => {
            record.failed(&fault);
            return refused(&fault);
        }
    };
    record.taken(stream, answer.prompt_tokens());
    let reply = Reply { stream_usage, ..reply };
    let mut phase = shared.phase.subscribe();
    if stream {
        let silence = stream::silence(&shared.settings.limits);
        return events(stream::body(answer, reply, record, phase, silence));
    }
    let whole = tokio::select! {
        whole = whole(&mut answer, &reply, &mut record) => whole,
        () = phase::ending(&mut phase) => Err(Fault::stopping()),
    };
    match whole {
        Ok(whole) => json_response(StatusCode::OK, &whole),
        Err(fault) => {
            record.failed(&fault);
            refused(&fault)
        }
    }
}

/// Reads a request and gives it to the model. Parsing and tokenizing may take their time, so they have threads of their own.
async fn take<M: Model>(
    shared: &Arc<Shared<M>>,
    endpoint: Endpoint,
    request: Request,
) -> Result<(M::Answer, bool, bool), Fault> {
    let model = Arc::clone(shared.model()?);
    let (parts, body) = request.into_parts();
    let body = shared.bodies.read(&parts.headers, body).await?;
    let (defaults, fit_tokens_max) = (shared.sampling(), shared.settings.fit_tokens_max);
    let keep_attribution = shared.settings.keep_attribution;
    let taken = spawn_blocking(move || {
        let mut asked = match endpoint {
            Endpoint::Chat => openai::chat::parse(&body.bytes, &defaults)?,
            Endpoint::Completions => openai::completions::parse(&body.bytes, &defaults)?,
        };
        drop(body);
        // Of the date in a prompt the zone matters little, and the standard library knows none but this.
        asked.request.local_time_s = Some(now_s() as i64);
        asked.request.fit_tokens_max |= fit_tokens_max;
        if !keep_attribution {
            asked.request.leave_out_attribution();
        }
        let answer = model.generate(asked.request).map_err(Taken::Refused)?;
        Ok((answer, asked.stream, asked.stream_usage))
    });
    match taken.await {
        Ok(Ok(taken)) => Ok(taken),
        Ok(Err(Taken::Wrong(fault))) => Err(fault),
        Ok(Err(Taken::Refused(error))) => Err(openai::refusal(&error)),
        // It panicked, which the program has reported.
        Err(_) => Err(Fault::new(Kind::Failed, "the request met a defect of the server")),
    }
}

/// Why a request was not taken.
enum Taken {
    Wrong(Fault),
    Refused(ChatError),
}

impl From<Fault> for Taken {
    fn from(fault: Fault) -> Taken {
        Taken::Wrong(fault)
    }
}

async fn whole<A: Answer>(answer: &mut A, reply: &Reply, record: &mut Record) -> Result<Value, Fault> {
    let mut content = Content::default();
    loop {
        match answer.next().await {
            Some(ChatEvent::Reading { .. }) => {}
            Some(ChatEvent::Thinking(text)) => content.thinking.push_str(&text),
            Some(ChatEvent::Text(text)) => content.text.push_str(&text),
            Some(ChatEvent::End(end)) => {
                let finish = openai::finish(&end)?;
                record.answered(&end);
                return Ok(reply.whole(&content, finish, end.usage));
            }
            None => return Err(openai::no_end()),
        }
    }
}

fn refused(fault: &Fault) -> Response {
    let mut response = json_response(openai::error::status(fault.kind), &openai::error::body(fault));
    if matches!(fault.kind, Kind::Busy | Kind::Loading | Kind::Stopping) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    }
    if matches!(fault.kind, Kind::Slow | Kind::TooLarge) {
        // What still comes of the body is not waited for.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, json)], value.to_string()).into_response()
}

fn events(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Some proxies collect what they pass on, unless told not to.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
