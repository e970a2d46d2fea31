//! What a client is told when its request cannot be answered, before it takes the form of one API.

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request makes no sense.
    Invalid,
    /// It makes sense and asks for what is not there yet.
    Unsupported,
    /// More tokens than the context holds.
    ContextExceeded,
    /// The key is wrong or absent.
    Key,
    /// From where it comes, or under which name the server was called.
    Forbidden,
    /// No such path.
    NotFound,
    /// Not by this method.
    Method,
    /// The body came too slowly.
    Slow,
    /// The body is too large.
    TooLarge,
    /// Too many requests wait; this one may be sent again.
    Busy,
    /// The model is not loaded yet.
    Loading,
    /// The server ends.
    Stopping,
    /// Something here failed.
    Failed,
}

/// A request that is not answered. The message is for its sender and is never logged: it may hold a part of what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Why.
    pub kind: Kind,
    /// One plain sentence.
    pub message: String,
    /// The field, as a path into the body.
    pub field: Option<String>,
}

impl Fault {
    /// About the request as a whole.
    pub fn new(kind: Kind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), field: None }
    }

    /// About one field.
    pub fn of_field(kind: Kind, field: impl Into<String>, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), field: Some(field.into()) }
    }

    /// The server ends and takes its requests with it.
    pub fn stopping() -> Fault {
        Fault::new(Kind::Stopping, "the server is stopping; send the request again when it is back")
    }
}
