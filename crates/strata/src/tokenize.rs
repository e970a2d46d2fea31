//! `strata tokenize`: the ids of a text.

use chat::{ChatRequest, Prompt, Specials};

use crate::args::ModelArgs;
use crate::error::Error;
use crate::output::Output;
use crate::prepare;

/// The arguments of `strata tokenize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata tokenize -m model.gguf -p 'Hello, world'
  strata tokenize -m model.gguf -p 'Hello' --chat --json

With --json: {\"tokens\": [...], \"pieces\": [...]}.")]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text; - reads standard input, without the line end that closes it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// Put the text into the model's chat template, as the user's message
    #[arg(long)]
    pub chat: bool,
    /// Do not add the begin-of-text token where the model uses one
    #[arg(long, conflicts_with = "chat")]
    pub no_bos: bool,
    /// Treat the texts of control tokens as ordinary text
    #[arg(long, conflicts_with = "chat")]
    pub no_special: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the ids and their texts. Reads no weights.
///
/// # Errors
/// Those of the model, the text and the streams.
pub fn tokenize(args: &TokenizeArgs) -> Result<(), Error> {
    let text = prepare::text_argument(&args.prompt)?;
    let metadata = prepare::metadata(&args.model)?;
    let format = prepare::format(&args.model, &metadata)?;
    let tokenizer = format.tokenizer();
    let specials = if args.no_special { Specials::AsText } else { Specials::Parse };
    let ids = if args.chat {
        format.prompt_tokens(&ChatRequest {
            prompt: Prompt::user(text),
            local_time_s: prepare::local_time_s(),
            ..ChatRequest::default()
        })?
    } else if args.no_bos {
        tokenizer.encode(&text, specials)
    } else {
        tokenizer.encode_prompt(&text, specials)
    };
    let piece = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id));
    if args.json {
        // Written piece by piece: as one value, a long text's would take a hundred bytes of memory a token.
        return Output::new().document(|out| {
            out.write_all(b"{\"tokens\":")?;
            serde_json::to_writer(&mut *out, &ids)?;
            out.write_all(b",\"pieces\":[")?;
            for (i, &id) in ids.iter().enumerate() {
                out.write_all(if i > 0 { b"," } else { b"" })?;
                serde_json::to_writer(&mut *out, &piece(id))?;
            }
            out.write_all(b"]}\n")
        });
    }
    Output::new().document(|out| ids.iter().try_for_each(|&id| writeln!(out, "{id:>8} {:?}", piece(id))))
}
