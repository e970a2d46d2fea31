//! `strata tokenize`: the ids of a text.

use chat::{ChatRequest, Prompt, Specials};

use crate::args::TokenizeArgs;
use crate::error::Error;
use crate::output::Output;
use crate::prepare;

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
