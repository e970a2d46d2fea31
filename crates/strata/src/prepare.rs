//! What several commands begin with: the model, its tokenizer, the prompt.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use chat::{Message, RenderInput, Role, Template, Tokenizer, Vocabulary};
use engine::{Engine, EngineConfig, KvType, LoadError, LoadOptions};
use gguf::Metadata;

use crate::args::{ComputeArgs, ModelArgs};
use crate::error::Error;
use crate::progress::Waiting;

/// Most prompt tokens of one pass: enough to make every read of the weights count, few enough for small buffers.
const CHUNK_TOKENS: usize = 512;

/// Most bytes of a text: many times what any context holds.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Loads the model and starts the threads. `kv` and `context_tokens` are what the command line left open.
pub fn engine(
    model: &ModelArgs,
    compute: &ComputeArgs,
    kv: KvType,
    context_tokens: Option<usize>,
) -> Result<Engine, Error> {
    let load = LoadOptions { kv: compute.kv.unwrap_or(kv), context_tokens, draft: None };
    let threads = compute.threads.unwrap_or_else(sys::topology::threads_default);
    let config = EngineConfig { load, threads, isa: compute.isa, chunk_tokens: CHUNK_TOKENS };
    let path = model.path()?;
    let _waiting = Waiting::start("loading the model");
    let engine = Engine::load(&path, &config)
        .map_err(|source| Error::Load { path: path.clone(), source: Box::new(source) })?;
    for warning in &engine.model().spec.warnings {
        tracing::warn!("{warning}");
    }
    Ok(engine)
}

/// The metadata of a model that need not be computed with.
pub fn metadata(model: &ModelArgs) -> Result<Metadata, Error> {
    let path = model.path()?;
    let file = gguf::ModelFile::open(&path)
        .map_err(|source| Error::Load { path, source: Box::new(LoadError::File(source)) })?;
    Ok(file.metadata)
}

/// The model's tokenizer.
pub fn tokenizer(model: &ModelArgs, metadata: &Metadata) -> Result<Tokenizer, Error> {
    Vocabulary::from_metadata(metadata)
        .and_then(Tokenizer::new)
        .map_err(|source| Error::Tokenizer { path: model.model.clone(), source: Box::new(source) })
}

/// The prompt text that the model's chat template makes of a user's message.
pub fn chat_prompt(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
    system: Option<&str>,
    user: &str,
) -> Result<String, Error> {
    let template =
        Template::from_metadata(metadata, tokenizer).map_err(|error| Error::Template(Box::new(error)))?;
    let mut messages: Vec<Message> =
        system.into_iter().map(|text| Message::new(Role::System, text)).collect();
    messages.push(Message::new(Role::User, user));
    let text_of = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)));
    let (bos, eos) = (text_of(tokenizer.bos()), text_of(tokenizer.eos()));
    let input = RenderInput {
        messages: &messages,
        add_generation_prompt: true,
        bos_token: bos.as_deref(),
        eos_token: eos.as_deref(),
        // Of the date in a prompt the zone matters little; the standard library knows none but this.
        local_time_s: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs() as i64),
        ..RenderInput::default()
    };
    template.render(&input).map_err(|error| Error::Template(Box::new(error)))
}

/// A text from the command line, where `-` stands for standard input.
pub fn text_argument(text: &str) -> Result<String, Error> {
    match text {
        "-" => file_text(Path::new("-")),
        text => Ok(text.to_owned()),
    }
}

/// A file's text without the line end that closes it, where `-` stands for standard input.
pub fn file_text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut read = |source: &mut dyn Read| source.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes);
    let (what, read) = if path == Path::new("-") {
        ("the standard input".to_owned(), read(&mut std::io::stdin().lock()))
    } else {
        (path.display().to_string(), File::open(path).and_then(|mut file| read(&mut file)))
    };
    if let Err(source) = read {
        return Err(Error::Io { action: "read", what, source });
    }
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(Error::TextTooLong { what, bytes_max: TEXT_BYTES_MAX });
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| Error::NotText { what, at: error.utf8_error().valid_up_to() })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The text that a token adds to an answer. Ids without a text, which some models have, add none.
pub fn answer_bytes(tokenizer: &Tokenizer, token: u32) -> &[u8] {
    if token as usize >= tokenizer.vocabulary_len() || tokenizer.is_control(token) {
        return &[];
    }
    tokenizer.token_bytes(token)
}
