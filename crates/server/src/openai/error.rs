//! The API's form of errors.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::fault::{Fault, Kind};

/// The status of an answer that is none.
pub(crate) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid | Kind::Unsupported | Kind::ContextExceeded => StatusCode::BAD_REQUEST,
        Kind::Key => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Slow => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
        Kind::Loading | Kind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The type and the code that the API's clients look at.
fn names(kind: Kind) -> (&'static str, Option<&'static str>) {
    match kind {
        Kind::Invalid => ("invalid_request_error", None),
        Kind::Unsupported => ("invalid_request_error", Some("unsupported_value")),
        Kind::ContextExceeded => ("invalid_request_error", Some("context_length_exceeded")),
        Kind::Key => ("authentication_error", Some("invalid_api_key")),
        Kind::Forbidden => ("permission_error", Some("host_not_allowed")),
        Kind::NotFound => ("invalid_request_error", Some("unknown_url")),
        Kind::Method => ("invalid_request_error", Some("method_not_allowed")),
        Kind::Slow => ("invalid_request_error", Some("request_timeout")),
        Kind::TooLarge => ("invalid_request_error", Some("request_too_large")),
        Kind::Busy => ("rate_limit_error", Some("queue_full")),
        Kind::Loading => ("server_error", Some("model_loading")),
        Kind::Stopping => ("server_error", Some("server_stopping")),
        Kind::Failed => ("server_error", None),
    }
}

/// The body of such an answer; in a stream, its last event.
pub(crate) fn body(fault: &Fault) -> Value {
    let (kind, code) = names(fault.kind);
    json!({"error": {"message": fault.message, "type": kind, "param": fault.field, "code": code}})
}
