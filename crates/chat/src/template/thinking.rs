//! What a template and its vocabulary say of thinking before an answer.

use super::source::Words;
use crate::Tokenizer;

/// Marks around thinking, by the families that use them: Qwen, DeepSeek, GLM and most others; Mistral's Magistral;
/// ByteDance's Seed. Source: the templates that they publish.
const MARKS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// How a model is known to think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinkingForm {
    /// Whether the template looks at `enable_thinking`, so that thinking can be turned on or off.
    pub switchable: bool,
    /// The marks that begin and end it; none if neither the template nor the vocabulary has any.
    pub marks: Option<(&'static str, &'static str)>,
}

impl ThinkingForm {
    pub(super) fn new(source: &str, words: &Words) -> ThinkingForm {
        let has = |(open, close): &(&str, &str)| source.contains(open) || source.contains(close);
        ThinkingForm {
            switchable: words.contains("enable_thinking"),
            marks: MARKS.iter().find(|marks| has(marks)).copied(),
        }
    }

    /// Also by a vocabulary that has both marks as tokens of their own.
    pub(super) fn or_by_vocabulary(self, tokenizer: &Tokenizer) -> ThinkingForm {
        let has = |(open, close): &(&str, &str)| {
            tokenizer.id_of(open).is_some() && tokenizer.id_of(close).is_some()
        };
        ThinkingForm { marks: self.marks.or_else(|| MARKS.iter().find(|marks| has(marks)).copied()), ..self }
    }

    /// Whether a prompt ends within thinking: with its opening mark, white space aside, so that the answer goes on with it.
    pub fn is_opened_by(&self, prompt: &str) -> bool {
        self.marks.is_some_and(|(open, _)| prompt.trim_end().ends_with(open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, RenderInput, Role, Template, Vocabulary};

    fn thinking(source: &str) -> ThinkingForm {
        Template::new(source, &[]).unwrap().thinking()
    }

    #[test]
    fn a_template_tells_of_its_thinking() {
        let marks = Some(("<think>", "</think>"));
        let check =
            |source, switchable, marks| assert_eq!(thinking(source), ThinkingForm { switchable, marks });
        check("{{ messages[0].content }}", false, None);
        check("{# enable_thinking #}enable_thinking", false, None);
        check("{% if enable_thinking is defined %}<think>{% endif %}", true, marks);
        check("{{ messages[0].content.split('</think>')[-1] }}", false, marks);
        check("{{ '[THINK]' }}", false, Some(("[THINK]", "[/THINK]")));
        check("<seed:think>", false, Some(("<seed:think>", "</seed:think>")));
    }

    #[test]
    fn a_vocabulary_tells_of_thinking_too() {
        let template = |tokens: &[&str], source: &str| {
            let tokens = ["<|im_start|>"].iter().chain(tokens).map(|&text| text.to_owned()).collect();
            let (model, pre) = ("gpt2".into(), "qwen2".into());
            let tokenizer =
                Tokenizer::new(Vocabulary { model, pre, tokens, ..Vocabulary::default() }).unwrap();
            let source = gguf::Value::String(source.as_bytes().to_vec());
            let metadata = gguf::Metadata::new(vec![("tokenizer.chat_template".into(), source)]).unwrap();
            Template::from_metadata(&metadata, &tokenizer).unwrap().thinking().marks
        };
        assert_eq!(template(&["<think>", "</think>"], "x"), Some(("<think>", "</think>")));
        assert_eq!(template(&["<think>"], "x"), None);
        assert_eq!(template(&["<think>", "</think>"], "[/THINK]"), Some(("[THINK]", "[/THINK]")));
    }

    #[test]
    fn a_prompt_may_end_within_thinking() {
        let source = "{{ messages[0].content }}{% if add_generation_prompt %}<assistant>\
            {% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";
        let template = Template::new(source, &[]).unwrap();
        let messages = [Message::new(Role::User, "What is <think>?")];
        let opened = |add_generation_prompt, enable_thinking| {
            let input = RenderInput {
                messages: &messages,
                add_generation_prompt,
                enable_thinking,
                ..RenderInput::default()
            };
            template.thinking().is_opened_by(&template.render_prompt(&input).unwrap().text)
        };
        assert!(opened(true, None));
        assert!(opened(true, Some(true)));
        assert!(!opened(true, Some(false)));
        assert!(!opened(false, None));
        assert!(!ThinkingForm::default().is_opened_by("<think>"));
    }
}
