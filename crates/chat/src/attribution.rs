//! A line that a coding agent sends and no model should read.
//!
//! Claude Code begins its system prompt with a line like `x-anthropic-billing-header: cc_version=2.1.117.48f;
//! cc_entrypoint=cli; cch=71fea;`. It tells the model nothing, and its end is another one in every request: with it in the
//! prompt, nothing behind it would ever be the same as before, and all of it would be read again at every turn.

use crate::{ChatRequest, Prompt, Role};

/// What the line begins with.
const START: &str = "x-anthropic-billing-header:";

impl ChatRequest {
    /// Leaves the line out, if the conversation begins with it, and the empty lines that follow it. Where instructions consist of
    /// nothing else, so is their message.
    pub fn leave_out_attribution(&mut self) {
        let Prompt::Messages { messages, .. } = &mut self.prompt else { return };
        let Some(first) = messages.first_mut() else { return };
        if !matches!(first.role, Role::System | Role::Developer) || !first.content.starts_with(START) {
            return;
        }
        let rest = first.content.split_once('\n').map_or("", |(_, rest)| rest);
        first.content = rest.trim_start_matches(['\r', '\n']).to_owned();
        if first.content.is_empty() {
            messages.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::Message;

    fn left(messages: &[(Role, &str)]) -> Vec<(Role, String)> {
        let messages = messages.iter().map(|&(role, text)| Message::new(role, text)).collect();
        let prompt = Prompt::Messages { messages, variables: Map::new() };
        let mut request = ChatRequest { prompt, ..ChatRequest::default() };
        request.leave_out_attribution();
        let Prompt::Messages { messages, .. } = request.prompt else { panic!("no conversation") };
        messages.into_iter().map(|message| (message.role, message.content)).collect()
    }

    const LINE: &str = "x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch=71fea;";

    /// Its checksum changes with every request, so that none of 28,000 tokens behind it was found again.
    #[test]
    fn the_line_is_left_out_at_the_beginning_of_instructions() {
        let user = (Role::User, "Hi");
        let kept = (Role::User, "Hi".to_owned());
        for role in [Role::System, Role::Developer] {
            for between in ["\n", "\n\n", "\r\n\r\n"] {
                let text = format!("{LINE}{between}You are an agent.\n\nBe brief.");
                let wanted = (role, "You are an agent.\n\nBe brief.".to_owned());
                assert_eq!(left(&[(role, &text), user]), [wanted, kept.clone()]);
            }
            assert_eq!(left(&[(role, LINE), user]), std::slice::from_ref(&kept));
        }
    }

    /// Whoever speaks of it is not to be cut short.
    #[test]
    fn what_only_mentions_it_stays() {
        let text = format!("What is this?\n{LINE}\nI found it.");
        for messages in [
            vec![(Role::User, LINE)],
            vec![(Role::System, &*text), (Role::User, "Hi")],
            vec![(Role::System, "Be brief."), (Role::System, LINE)],
            vec![(Role::System, "x-anthropic-billing: none")],
            vec![],
        ] {
            let same: Vec<_> = messages.iter().map(|&(role, text)| (role, text.to_owned())).collect();
            assert_eq!(left(&messages), same);
        }
        let mut text = ChatRequest { prompt: Prompt::Text(LINE.into()), ..ChatRequest::default() };
        text.leave_out_attribution();
        assert!(matches!(text.prompt, Prompt::Text(text) if text == LINE));
    }
}
