//! A conversation, and the file that keeps it.
//!
//! The file is JSON: `{"format": "strata-conversation-1", "messages": [{"role", "content", "reasoning"?}]}`, with the
//! system text as the first message.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use chat::{Message, Role};
use serde::{Deserialize, Serialize};

use crate::error::Error;

const FORMAT: &str = "strata-conversation-1";

/// Most bytes of a file: many times what any context holds.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What was said so far.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<Message>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    messages: Vec<StoredMessage>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMessage {
    role: StoredRole,
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum StoredRole {
    System,
    User,
    Assistant,
}

impl Conversation {
    /// Before the first message.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system, turns: Vec::new() }
    }

    /// What the model is told first.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Tells the model something else first.
    pub fn set_system(&mut self, text: String) {
        self.system = Some(text);
    }

    /// Forgets all but the system text.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Messages, the system text not counted.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// The user says something.
    pub fn user(&mut self, text: String) {
        self.turns.push(Message::new(Role::User, text));
    }

    /// The model has answered.
    pub fn assistant(&mut self, text: String, thinking: String) {
        let reasoning = (!thinking.is_empty()).then_some(thinking);
        self.turns.push(Message { reasoning, ..Message::new(Role::Assistant, text) });
    }

    /// As the model is given it.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.as_ref().map(|text| Message::new(Role::System, text.clone()));
        system.into_iter().chain(self.turns.iter().cloned()).collect()
    }

    /// Writes it to a file, which is replaced as a whole or not at all; of a link, what it leads to. Nothing but a file is
    /// replaced.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let fault = |source| Error::Io { action: "write", what: path.display().to_string(), source };
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if target.metadata().is_ok_and(|meta| !meta.is_file()) {
            return Err(fault(io::Error::other("it is there already and is no file")));
        }
        let role = |role: Role| match role {
            Role::System => StoredRole::System,
            Role::User => StoredRole::User,
            Role::Assistant => StoredRole::Assistant,
            role => unreachable!("nobody says anything as {role} here"),
        };
        let messages = self.messages().into_iter().map(|message| StoredMessage {
            role: role(message.role),
            content: message.content,
            reasoning: message.reasoning,
        });
        let stored = Stored { format: FORMAT.into(), messages: messages.collect() };
        let text = serde_json::to_string_pretty(&stored).expect("texts are JSON");
        let folder =
            target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&target).map_err(|error| error.error)
        });
        written.map(|_| ()).map_err(|error| fault(cause(error)))
    }

    /// Reads one from a file.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Conversation`].
    pub fn load(path: &Path) -> Result<Conversation, Error> {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text))
            .map_err(|source| Error::Io { action: "read", what: path.display().to_string(), source })?;
        let refused = |reason: String| Error::Conversation { path: path.into(), reason };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(refused(format!("it holds more than {FILE_BYTES_MAX} bytes")));
        }
        let stored: Stored = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        if stored.format != FORMAT {
            return Err(refused(format!("its format is {:?}, where {FORMAT:?} is needed", stored.format)));
        }
        let mut conversation = Conversation::default();
        for (at, message) in stored.messages.into_iter().enumerate() {
            let StoredMessage { role, content, reasoning } = message;
            match role {
                StoredRole::System if at == 0 => conversation.system = Some(content),
                StoredRole::System => {
                    return Err(refused(format!("message {at} is a system text, which comes first")));
                }
                StoredRole::User => conversation.user(content),
                StoredRole::Assistant => conversation.assistant(content, reasoning.unwrap_or_default()),
            }
        }
        Ok(conversation)
    }
}

/// What went wrong, without the name of a file for the time being that nobody asked for.
fn cause(error: io::Error) -> io::Error {
    match (error.raw_os_error(), error.kind()) {
        (Some(_), _) => error,
        (None, ErrorKind::NotFound) => io::Error::other("its folder does not exist"),
        (None, ErrorKind::PermissionDenied) => io::Error::other("its folder may not be written to"),
        (None, kind) => kind.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("größe 1.json");
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.user("\u{1f600}\n\"quoted\"".into());
        conversation.assistant("Yes.".into(), "Hm.".into());
        conversation.user("And?".into());
        conversation.assistant("No.".into(), String::new());
        conversation.save(&path).expect("a file");
        // Again, over the old one.
        conversation.save(&path).expect("a file");
        assert_eq!(Conversation::load(&path).expect("a conversation").messages(), conversation.messages());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing left over");
        let missing = conversation.save(&folder.path().join("missing/talk.json")).expect_err("no folder");
        // The name of the file for the time being was in it.
        assert!(missing.to_string().ends_with("talk.json: its folder does not exist"), "{missing}");
    }

    /// A device was replaced by a file, and so was a link.
    #[cfg(unix)]
    #[test]
    fn saving_replaces_files_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let conversation = Conversation::new(Some("Be brief.".into()));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        for path in [&socket, folder.path()] {
            let error = conversation.save(path).expect_err("no file").to_string();
            assert!(error.ends_with("it is there already and is no file"), "{error}");
        }
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        std::fs::write(&file, "old").expect("written");
        std::os::unix::fs::symlink("file", &link).expect("linked");
        conversation.save(&link).expect("saved");
        assert!(link.symlink_metadata().expect("there").is_symlink());
        assert_eq!(Conversation::load(&file).expect("a conversation").system(), Some("Be brief."));
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("talk.json");
        let message = r#"{"role":"user","content":"a"}"#;
        for (text, said) in [
            ("", "EOF"),
            ("[1,2]", "invalid"),
            (r#"{"format":"strata-conversation-9","messages":[]}"#, "strata-conversation-1"),
            (r#"{"format":"strata-conversation-1","messages":[{"role":"robot","content":""}]}"#, "robot"),
            (r#"{"format":"strata-conversation-1","messages":[{"role":"user"}]}"#, "content"),
            (
                &format!(
                    r#"{{"format":"strata-conversation-1","messages":[{message},{}]}}"#,
                    message.replace("user", "system")
                ),
                "comes first",
            ),
        ] {
            std::fs::write(&path, text).expect("a file");
            let error = Conversation::load(&path).expect_err(text).to_string();
            assert!(error.contains(said) && error.contains("talk.json"), "{text}: {error}");
        }
    }
}
