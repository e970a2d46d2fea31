//! The tokens that end an answer, where the file does not name them.

use std::collections::{BTreeSet, HashMap};

use super::tokens::Kind;

/// Texts that end a generation. Source: `special_eog_ids` in llama.cpp's `llama_vocab::impl::load`, of which these
/// belong to vocabularies of BPE and SentencePiece; the last rows are ends of a part in fill-in-the-middle prompts.
const END_TEXTS: [&str; 28] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// The tokens of [`END_TEXTS`], which become control tokens whatever their type in the file: converters often get it
/// wrong. One that is the result of a rule `(left, right, merged)` is ordinary text, and left alone.
pub(super) fn end_tokens(
    ids: &HashMap<Box<str>, u32>,
    rules: &[(u32, u32, u32)],
    kinds: &mut [Kind],
) -> BTreeSet<u32> {
    let mut ends: BTreeSet<u32> = END_TEXTS.iter().filter_map(|&text| ids.get(text).copied()).collect();
    for &(_, _, merged) in rules {
        if kinds[merged as usize] == Kind::Ordinary {
            ends.remove(&merged);
        }
    }
    // In vocabularies with these calls, a turn of several parts has `<|end|>` between them.
    let has = |text| ids.get(text).is_some_and(|id| ends.contains(id));
    let parts = has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>");
    if let Some(end) = ids.get("<|end|>").filter(|_| parts) {
        ends.remove(end);
    }
    for &id in &ends {
        kinds[id as usize] = Kind::Control;
    }
    ends
}
