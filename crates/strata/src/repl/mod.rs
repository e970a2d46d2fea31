//! `strata chat`: a conversation in the terminal, or in a pipe.

mod answer;
mod command;
mod conversation;
mod input;

use chat::{ChatModel, ChatRequest, Prompt, Thinking};

use tokio::signal::unix::Signal;

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, parse};
use crate::error::Error;
use crate::output::{self, Output};
use crate::prepare::{self, Kept, Places};
use answer::Told;
use command::Command;
pub use command::WrongCommand;
use conversation::Conversation;
use input::{Input, Line};

/// The arguments of `strata chat`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata chat -m model.gguf
  strata chat -m model.gguf --system 'Answer in one sentence.' --temp 0.3
  strata chat -m model.gguf --thinking off
  printf 'Hello\\nAnd in French?\\n' | strata chat -m model.gguf

Each line is a message; a line that ends in a backslash goes on in the next one. Lines that begin with a slash are
commands: /system, /reset, /save, /load, /stats, /help, /quit. Ctrl-C stops an answer, Ctrl-D ends the program.
In a pipe, the answers go to standard output one after the other, without the model's thinking."
)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Whether a model that can think does so before it answers: auto, off, or on with at most so many tokens
    #[arg(long, value_name = "auto|off|N", default_value = "auto", value_parser = parse::thinking)]
    pub thinking: Thinking,
    /// Most tokens of an answer [default: until the model ends it or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse::in_range(1..=usize::MAX))]
    pub tokens_max: Option<usize>,
    /// End answers before this text; may be given again and again
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Most tokens of the whole conversation [default: what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub ctx: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Converses until the input ends.
///
/// # Errors
/// Those of loading and of the streams. What goes wrong with one message is told, and the conversation goes on; in a pipe
/// it ends the program, since nobody is there to react.
pub fn chat(args: &ChatArgs) -> Result<(), Error> {
    let alone = Places { parallel_max: Some(1), queue_max: 0 };
    let model =
        prepare::chat_model(&args.model, &args.compute, args.ctx, alone, Kept::default(), &["--ctx"])?;
    if let Some(error) = model.format().template_error() {
        return Err(Error::NoConversation(error));
    }
    let mut input = Input::open()?;
    if input.is_terminal() {
        output::note(format_args!("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends."));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime =
        runtime.map_err(|source| Error::Io { action: "wait for", what: "the keyboard".into(), source })?;
    let mut repl =
        Repl { args, model, conversation: Conversation::new(args.system.clone()), told: Told::default() };
    loop {
        // Before the line is read: from its end on the terminal makes signals of Ctrl-C, and nothing may lie between.
        let interrupts = match input.is_terminal() {
            true => Some(runtime.block_on(async { answer::interrupts() })?),
            false => None,
        };
        let line = match input.read()? {
            Line::Text(line) => line,
            Line::Interrupted => {
                output::note(format_args!("Ctrl-D or /quit ends the program."));
                continue;
            }
            Line::Garbled => {
                output::note(format_args!("error: what was typed is not UTF-8 text: type it again"));
                continue;
            }
            Line::End => return Ok(()),
        };
        let done = match Command::parse(&line) {
            Some(Ok(Command::Quit)) => return Ok(()),
            Some(Ok(command)) => repl.command(command),
            Some(Err(wrong)) => Err(wrong.into()),
            None if line.trim().is_empty() => continue,
            None => repl.say(&runtime, command::message(&line), interrupts),
        };
        match done {
            Ok(()) => {}
            Err(error @ Error::ReaderGone) => return Err(error),
            Err(error) if input.is_terminal() => {
                output::note(format_args!("error: {}", output::plain(&error.to_string())));
            }
            Err(error) => return Err(error),
        }
    }
}

struct Repl<'a> {
    args: &'a ChatArgs,
    model: ChatModel,
    conversation: Conversation,
    told: Told,
}

impl Repl<'_> {
    /// Answers a message. One that cannot be answered is not part of the conversation.
    fn say(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        text: &str,
        interrupts: Option<Signal>,
    ) -> Result<(), Error> {
        let mut conversation = self.conversation.clone();
        conversation.user(text.to_owned());
        let request = ChatRequest {
            prompt: Prompt::Messages { messages: conversation.messages(), variables: serde_json::Map::new() },
            sampling: self.args.sampling.sampling(prepare::fresh_seed()),
            tokens_max: self.args.tokens_max,
            // It was asked for once, for messages of any length.
            fit_tokens_max: true,
            stop_strings: self.args.stop.clone(),
            thinking: self.args.thinking,
            local_time_s: prepare::local_time_s(),
        };
        let answer = self.model.generate(request).map_err(Error::from).map_err(in_conversation)?;
        let written = runtime.block_on(answer::write(answer, Output::new(), interrupts))?;
        self.told.add(&written);
        let failed = written.end.reason.clone().err();
        if failed.is_none() || !written.text.is_empty() {
            conversation.assistant(written.text, written.thinking);
            self.conversation = conversation;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn command(&mut self, command: Command) -> Result<(), Error> {
        match command {
            Command::System(None) => match self.conversation.system() {
                Some(text) => output::note(format_args!("system: {}", output::plain(text))),
                None => output::note(format_args!("no system text; /system TEXT sets one")),
            },
            Command::System(Some(text)) => self.conversation.set_system(text),
            Command::Reset => self.conversation.reset(),
            Command::Save(path) => {
                self.conversation.save(&path)?;
                output::note(format_args!("saved to {}", output::plain(&path.to_string_lossy())));
            }
            Command::Load(path) => {
                self.conversation = Conversation::load(&path)?;
                let count = self.conversation.len();
                let path = path.to_string_lossy();
                output::note(format_args!("{count} messages loaded from {}", output::plain(&path)));
            }
            Command::Stats => output::note(format_args!("{}", self.told)),
            Command::Help => output::note(format_args!("{}", command::HELP)),
            Command::Quit => unreachable!("the loop ends with it"),
        }
        Ok(())
    }
}

/// In a conversation there are other ways out.
fn in_conversation(error: Error) -> Error {
    match error {
        Error::Template(error) => Error::NoConversation(error),
        Error::TooLong { found, context_tokens } => Error::ConversationTooLong { found, context_tokens },
        error => error,
    }
}
