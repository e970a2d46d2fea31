//! The source of a template, before the engine parses it.

use std::borrow::Cow;
use std::collections::HashSet;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Most tokens within one pair of braces. The engine folds constants in a time that grows with their square, and recurses
/// over them; real templates have some 300.
const TAG_TOKENS_MAX: usize = 2000;

/// The syntax that `apply_chat_template` sets.
pub(super) fn syntax() -> SyntaxConfig {
    let builder = &mut SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true).build().expect("the delimiters are the default ones")
}

/// The line of the first tag that is too long to compile, if there is one.
pub(super) fn too_long(source: &str) -> Option<usize> {
    let mut tokens = 0;
    for (token, span) in tokenize(source, false, syntax()).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => tokens = 0,
            _ => tokens += 1,
        }
        if tokens > TAG_TOKENS_MAX {
            return Some(span.start_line as usize);
        }
    }
    None
}

/// The strings and names in a template's program; texts that it writes as they are do not count.
#[derive(Debug, Default)]
pub(super) struct Words {
    literals: HashSet<Box<str>>,
    names: HashSet<Box<str>>,
}

impl Words {
    /// Those of `source`, up to where it stops being a template.
    pub(super) fn new(source: &str) -> Words {
        let mut words = Words::default();
        for (token, _) in tokenize(source, false, syntax()).map_while(Result::ok) {
            match token {
                Token::Ident(name) => words.names.insert(name.into()),
                Token::Str(text) => words.literals.insert(text.into()),
                Token::String(text) => words.literals.insert(text),
                _ => continue,
            };
        }
        words
    }

    pub(super) fn literals(&self) -> impl Iterator<Item = &str> {
        self.literals.iter().map(|text| &**text)
    }

    /// Whether `text` is a string or a name of the template.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.literals.contains(text) || self.names.contains(text)
    }
}

/// Takes `{% generation %}` and its end out of effect: marks of what to train on, which the engine does not know.
pub(super) fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation %}") && !source.contains("generation -%}") {
        return source.into();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |at| at + 2);
        let name = tag[2..end].trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag[..end].replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag[..end].replacen("endgeneration", "endif", 1)),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out.into()
}
