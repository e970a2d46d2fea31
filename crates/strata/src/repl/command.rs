//! What a line that begins with a slash asks for.

use std::path::PathBuf;

use thiserror::Error;

/// What `/help` prints.
pub const HELP: &str = "\
/system TEXT  tell the model how to behave, from the beginning; without TEXT, show what it was told
/reset        forget the conversation, but for the system text
/save FILE    write the conversation to a file
/load FILE    go on with a conversation from a file
/stats        tokens and speeds of the last answer and of all
/help         this
/quit         end; so does Ctrl-D
A message that begins with a slash is written with two. A line that ends in a backslash goes on in the next one.";

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Set the system text, or show it.
    System(Option<String>),
    /// Forget the conversation.
    Reset,
    /// Write it to a file.
    Save(PathBuf),
    /// Read it from a file.
    Load(PathBuf),
    /// Show figures.
    Stats,
    /// List the commands.
    Help,
    /// End.
    Quit,
}

/// A line that looks like a command and is none.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WrongCommand {
    /// No such word.
    #[error("there is no command {found}; /help lists them, and two slashes begin a message with one")]
    Unknown {
        /// The word.
        found: String,
    },
    /// A file is missing.
    #[error("{command} needs the name of a file")]
    NoFile {
        /// The command.
        command: &'static str,
    },
    /// More than it takes.
    #[error("{command} takes nothing more")]
    TooMuch {
        /// The command.
        command: &'static str,
    },
}

impl Command {
    /// The command of a line; nothing if it is a message.
    pub fn parse(line: &str) -> Option<Result<Command, WrongCommand>> {
        let line = line.trim();
        if !line.starts_with('/') || line.starts_with("//") {
            return None;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let alone = |command: &'static str, which: Command| match rest.is_empty() {
            true => Ok(which),
            false => Err(WrongCommand::TooMuch { command }),
        };
        let file = |command: &'static str, which: fn(PathBuf) -> Command| match rest.is_empty() {
            true => Err(WrongCommand::NoFile { command }),
            false => Ok(which(rest.into())),
        };
        Some(match word {
            "/system" => Ok(Command::System((!rest.is_empty()).then(|| rest.to_owned()))),
            "/reset" => alone("/reset", Command::Reset),
            "/save" => file("/save", Command::Save),
            "/load" => file("/load", Command::Load),
            "/stats" => alone("/stats", Command::Stats),
            "/help" | "/?" => alone("/help", Command::Help),
            "/quit" | "/exit" | "/bye" => alone("/quit", Command::Quit),
            found => Err(WrongCommand::Unknown { found: found.to_owned() }),
        })
    }
}

/// The message that a line is, of which a leading slash was doubled.
pub fn message(line: &str) -> &str {
    match line.trim_start().starts_with("//") {
        true => &line.trim_start()[1..],
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(Command::parse("what is 1/2?"), None);
        assert_eq!(Command::parse("//etc is a folder"), None);
        assert_eq!(message("//etc is a folder"), "/etc is a folder");
        assert_eq!(message(" plain"), " plain");
        assert_eq!(Command::parse(" /reset "), Some(Ok(Command::Reset)));
        assert_eq!(Command::parse("/system"), Some(Ok(Command::System(None))));
        assert_eq!(
            Command::parse("/system  Be  brief. "),
            Some(Ok(Command::System(Some("Be  brief.".into()))))
        );
        assert_eq!(Command::parse("/save my talk.json"), Some(Ok(Command::Save("my talk.json".into()))));
        assert_eq!(Command::parse("/load"), Some(Err(WrongCommand::NoFile { command: "/load" })));
        assert_eq!(Command::parse("/stats now"), Some(Err(WrongCommand::TooMuch { command: "/stats" })));
        assert_eq!(Command::parse("/etc"), Some(Err(WrongCommand::Unknown { found: "/etc".into() })));
    }
}
