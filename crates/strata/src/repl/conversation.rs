//! A conversation, and the file that keeps it.
//!
//! The file is JSON: `{"format": "strata-conversation-1", "messages": [{"role", "content", "reasoning"?}]}`, with the
//! system text as the first message.

use std::fs::File;
use std::io::{Read, Write};
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

    /// Writes it to a file, which is replaced as a whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
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
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)
        });
        match written {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::Io { action: "write", what: path.display().to_string(), source }),
        }
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
        assert!(conversation.save(&folder.path().join("missing/talk.json")).is_err());
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
