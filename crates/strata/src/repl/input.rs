//! Where messages come from: a line editor on a terminal, lines in a pipe.

use std::io::{BufRead, ErrorKind, IsTerminal, stdin, stdout};
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use crate::error::Error;
use crate::models::data::DataFolder;

/// Most lines of history.
const HISTORY_LINES: usize = 1000;

/// Most bytes of a message: many times what any context holds.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A source of messages.
pub enum Input {
    /// Somebody at a keyboard.
    Terminal {
        /// Reads and edits lines.
        editor: Box<Editor<(), FileHistory>>,
        /// Where lines are remembered from one time to the next.
        history: Option<PathBuf>,
    },
    /// A file or another program.
    Pipe,
}

/// What came.
pub enum Line {
    /// A message or a command.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Bytes that are no text.
    Garbled,
    /// Nothing more comes.
    End,
}

impl Input {
    /// The standard input.
    ///
    /// # Errors
    /// [`Error::Io`] if the terminal cannot be used.
    pub fn open() -> Result<Input, Error> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Ok(Input::Pipe);
        }
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .and_then(|builder| builder.history_ignore_dups(true))
            .map(|builder| builder.auto_add_history(false).bracketed_paste(true).build())
            .map_err(fault)?;
        let mut editor: Editor<(), FileHistory> = Editor::with_config(config).map_err(fault)?;
        let history = DataFolder::of_user().ok().map(|data| data.chat_history());
        if let Some(path) = &history {
            // Without one, or with one that cannot be read, it begins empty.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal { editor: Box::new(editor), history })
    }

    /// Whether somebody is there.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next message or command: a line, and those it is continued in.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotText`] and [`Error::TextTooLong`].
    pub fn read(&mut self) -> Result<Line, Error> {
        let mut text = String::new();
        loop {
            let line = match self.line(if text.is_empty() { "> " } else { ". " })? {
                Line::Text(line) => line,
                Line::End if !text.is_empty() => break,
                other => return Ok(other),
            };
            match line.strip_suffix('\\') {
                Some(line) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    break;
                }
            }
            if text.len() > MESSAGE_BYTES_MAX {
                return Err(too_long());
            }
        }
        if let Input::Terminal { editor, history } = self
            && !text.trim().is_empty()
        {
            let added = editor.add_history_entry(&text).unwrap_or(false);
            if let Some(path) = history.as_ref().filter(|_| added) {
                remember(editor, path);
            }
        }
        Ok(Line::Text(text))
    }

    fn line(&mut self, prompt: &str) -> Result<Line, Error> {
        match self {
            Input::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => Ok(Line::Garbled),
                Err(error) => Err(fault(error)),
            },
            Input::Pipe => {
                let mut bytes = Vec::new();
                let mut input = std::io::Read::take(stdin().lock(), MESSAGE_BYTES_MAX as u64 + 1);
                let read = input.read_until(b'\n', &mut bytes);
                let what = || "the standard input".to_owned();
                read.map_err(|source| Error::Io { action: "read", what: what(), source })?;
                if bytes.is_empty() {
                    return Ok(Line::End);
                }
                if bytes.len() > MESSAGE_BYTES_MAX {
                    return Err(too_long());
                }
                if bytes.ends_with(b"\n") {
                    bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
                }
                let text = String::from_utf8(bytes)
                    .map_err(|error| Error::NotText { what: what(), at: error.utf8_error().valid_up_to() })?;
                Ok(Line::Text(text))
            }
        }
    }
}

/// Keeps the history in a file; a disk that is full is no reason to stop talking.
fn remember(editor: &mut Editor<(), FileHistory>, path: &PathBuf) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let kept = made.map_err(ReadlineError::from).and_then(|()| editor.append_history(path));
    if let Err(error) = kept {
        tracing::debug!("the history cannot be kept in {}: {error}", path.display());
    }
}

fn too_long() -> Error {
    Error::TextTooLong { what: "the message".into(), bytes_max: MESSAGE_BYTES_MAX as u64 }
}

fn fault(error: ReadlineError) -> Error {
    let source = match error {
        ReadlineError::Io(source) => source,
        error => std::io::Error::other(error.to_string()),
    };
    Error::Io { action: "read from", what: "the terminal".into(), source }
}
