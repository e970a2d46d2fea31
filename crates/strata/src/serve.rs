//! `strata serve`: a model behind an HTTP API.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chat::ChatModel;
use engine::SavedOptions;
use server::{Limits, Listener, Server, Settings};

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, parse};
use crate::error::Error;
use crate::output::Output;
use crate::prepare::{self, Kept, Places};

/// The arguments of `strata serve`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata serve -m model.gguf
  strata serve -m model.gguf --port 0 --parallel 8 --ctx 8192
  strata serve -m model.gguf --host 0.0.0.0 --api-key \"$(cat key.txt)\"

POST /v1/chat/completions and /v1/completions, GET /v1/models and /health, as clients of the OpenAI API know them, which
are given http://127.0.0.1:8080/v1 as their base URL. What is not there yet (tools, pictures, structured output, log
probabilities, n above 1) is refused as such. Any name of a model is taken.

Without --api-key no web page is answered, nor requests that name the server by a name other than localhost, an address
of its own or --host. When it is ready, one line with its address goes to standard output. Ctrl-C or SIGTERM ends it:
running answers have 5 s to come to their end, and what is not saved in --state-dir yet has 30 s."
)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Listen on this address, or on that of this name; 0.0.0.0 is all addresses of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Listen on this port; 0 is any that is free
    #[arg(long, value_name = "N", default_value_t = 8080, value_parser = port)]
    pub port: u16,
    /// Answer only requests that bring this key
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub api_key: Option<String>,
    /// Most requests that are answered at the same time; each has a context of its own [default: 4, or up to 16 where the machine
    /// has memory to spare, or fewer where 4 do not fit; `strata plan` says how many]
    #[arg(long, value_name = "N", value_parser = parse::in_range(1..=PARALLEL_MAX))]
    pub parallel: Option<usize>,
    /// Most requests that wait for their turn; further ones are told to come back later
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse::in_range(0..=QUEUE_MAX))]
    pub queue: usize,
    /// Most bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = parse::in_range(1 << 10..=BODY_MAX))]
    pub body_bytes_max: usize,
    /// Most connections at the same time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = parse::in_range(1..=CONNECTIONS_MAX))]
    pub connections_max: usize,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Most tokens of prompt and answer together, for each request [default: what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub ctx: Option<usize>,
    /// Give a request that asks for more tokens than the context holds beside its prompt as many as it holds, in place of
    /// refusing it
    #[arg(long)]
    pub fit_max_tokens: bool,
    /// Leave the line in the prompt that Claude Code begins its instructions with (x-anthropic-billing-header: ...). It is other in
    /// every request, so that all that comes behind it would be read again every time, and is left out unless this is given
    #[arg(long)]
    pub keep_attribution: bool,
    /// Most bytes of conversations that are kept, so that what was read is not read again, with K, M, G or T for powers of
    /// 1024; 0 keeps none [default: what the machine can spare]
    #[arg(long, value_name = "BYTES", value_parser = parse::memory_bytes)]
    pub prefix_cache: Option<u64>,
    /// Folder where conversations are saved when an answer ends and when the server stops, so that after a restart they go on
    /// without being read again; made if it is not there. A server that runs has it alone
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Most bytes of saved conversations, with K, M, G or T for powers of 1024; those not used for longest are removed
    #[arg(long, value_name = "BYTES", default_value = "16G", value_parser = parse::memory_bytes, requires = "state_dir")]
    pub state_bytes: u64,
    /// Days without use after which a saved conversation is removed
    #[arg(long, value_name = "DAYS", default_value_t = 30, requires = "state_dir")]
    pub state_days: u32,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

impl ServeArgs {
    fn kept(&self) -> Kept {
        let saved = self.state_dir.as_ref().map(|folder| SavedOptions {
            folder: folder.clone(),
            bytes_max: self.state_bytes,
            age_max: Duration::from_secs(u64::from(self.state_days) * 24 * 60 * 60),
            ..SavedOptions::default()
        });
        Kept { prefix_bytes: self.prefix_cache, saved }
    }
}

/// More sequences than any machine writes at once.
const PARALLEL_MAX: usize = 1024;

/// Requests that nobody waits for.
const QUEUE_MAX: usize = 1 << 20;

/// More than any conversation with pictures needs.
const BODY_MAX: usize = 1 << 30;

/// As many as an address has ports.
const CONNECTIONS_MAX: usize = 1 << 16;

/// Serves until it is told to stop.
///
/// # Errors
/// The address cannot be had, the model cannot be loaded, or standard output cannot be written.
pub fn serve(args: &ServeArgs) -> Result<(), Error> {
    let listener = Listener::bind(&args.host, args.port)?;
    let limits = Limits {
        body_bytes_max: args.body_bytes_max,
        bodies_bytes_max: Limits::default().bodies_bytes_max.max(args.body_bytes_max),
        connections_max: args.connections_max,
        ..Limits::default()
    };
    let settings = Settings {
        model_name: model_name(&args.model.model),
        api_key: args.api_key.clone(),
        sampling: args.sampling.sampling(0),
        seed: args.sampling.seed,
        fit_tokens_max: args.fit_max_tokens,
        keep_attribution: args.keep_attribution,
        limits,
    };
    let failed = |source| Error::Io { action: "start", what: "the server".into(), source };
    // It answers, with nothing but that it is loading, while the model is: whoever waits for it can tell.
    let server: Server<ChatModel> = Server::start(listener, settings).map_err(failed)?;
    let places = Places { parallel_max: args.parallel, queue_max: args.queue };
    let flags = &["--ctx", "--parallel", "--prefix-cache"];
    if args.state_dir.is_some() && args.prefix_cache == Some(0) {
        tracing::warn!(
            "nothing is saved in --state-dir: with --prefix-cache 0 nothing is kept of conversations"
        );
    }
    let model = prepare::chat_model(&args.model, &args.compute, args.ctx, places, args.kept(), flags)?;
    if let Some(error) = model.format().template_error() {
        tracing::warn!("conversations cannot be answered, only /v1/completions: {error}");
    }
    server.stop_on_signals().map_err(failed)?;
    server.ready(model);
    Output::new().piece(&format!("listening on http://{}\n", server.address()))?;
    server.wait().map_err(|source| Error::Io { action: "listen on", what: "the network".into(), source })
}

/// The name of the file, or of the folder, without what all names have.
fn model_name(path: &Path) -> String {
    let stem = path.file_stem().or_else(|| path.file_name()).unwrap_or(OsStr::new("model")).to_string_lossy();
    // Of a split file, the part's number says nothing.
    let mut parts = stem.rsplitn(4, '-');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(of), Some("of"), Some(number), Some(name)) if is_number(of) && is_number(number) => {
            name.to_owned()
        }
        _ => stem.into_owned(),
    }
}

fn is_number(text: &str) -> bool {
    text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn port(text: &str) -> parse::Parsed<u16> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", u16::MAX))
}

/// What goes into a header.
fn key(text: &str) -> parse::Parsed<String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("letters, digits and punctuation of ASCII are needed, one at least".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_by_its_file() {
        for (path, name) in [
            ("models/Tiny-1B.Q4_0.gguf", "Tiny-1B.Q4_0"),
            ("m/Big-00001-of-00003.gguf", "Big"),
            ("Big-Model-00002-of-00003.gguf", "Big-Model"),
            ("Best-of-3.gguf", "Best-of-3"),
            ("folder/", "folder"),
            ("/", "model"),
        ] {
            assert_eq!(model_name(Path::new(path)), name, "{path}");
        }
    }

    #[test]
    fn keys_can_be_sent() {
        assert!(key("s3same!").is_ok());
        for wrong in ["", "a b", "schlüssel", "a\n"] {
            assert!(key(wrong).is_err(), "{wrong}");
        }
    }
}
