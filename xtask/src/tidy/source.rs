//! As much of Rust's grammar as the rules need: what is code, where functions and test modules lie.

use std::ops::Range;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace, both included.
    pub lines: usize,
}

/// The text with every byte of comments and of the insides of string and character literals replaced by a space; line
/// ends stay, so offsets and line numbers hold.
pub fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !is_word_before(bytes, at) => raw_string_end(bytes, at),
            b'\'' => character_end(bytes, at),
            _ => at,
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Whole literals and comments were replaced, so no character was cut in two.
    String::from_utf8(code).expect("replacing whole literals keeps UTF-8")
}

/// The functions in code that went through [`code`], nested ones too.
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for start in words(code, "fn") {
        let rest = &code[start + 2..];
        let name: String =
            rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(body) = body(code, start).filter(|_| !name.is_empty()) else { continue };
        let lines = code[start..body.end].matches('\n').count() + 1;
        found.push(Function { name, line: line_of(code, start), lines });
    }
    found
}

/// The code without its `#[cfg(test)]` modules; line ends stay.
pub fn without_test_modules(code: &str) -> String {
    let mut kept = code.to_owned();
    let marker = "#[cfg(test)]";
    for (start, _) in code.match_indices(marker) {
        let rest = code[start + marker.len()..].trim_start();
        let is_module = rest.strip_prefix("pub ").unwrap_or(rest).starts_with("mod ");
        if let Some(body) = body(code, start + marker.len()).filter(|_| is_module) {
            let blank: String = code[body.clone()]
                .chars()
                .map(|c| if c == '\n' { "\n".into() } else { " ".repeat(c.len_utf8()) })
                .collect();
            kept.replace_range(body, &blank);
        }
    }
    kept
}

/// Offsets at which `word` stands as a whole word.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    let whole = move |start: usize| {
        let end = start + word.len();
        !is_word_before(bytes, start) && !bytes.get(end).is_some_and(|&byte| is_word(byte))
    };
    text.match_indices(word).map(|(start, _)| start).filter(move |&start| whole(start))
}

/// The line, from 1, that the offset lies in.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The first braced block after `start`, braces included; none if a `;` outside of brackets comes first.
fn body(code: &str, start: usize) -> Option<Range<usize>> {
    let mut brackets = 0i32;
    let open = code.as_bytes()[start..].iter().position(|byte| {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            _ => {}
        }
        brackets == 0 && matches!(byte, b'{' | b';')
    })? + start;
    if code.as_bytes()[open] == b';' {
        return None;
    }
    let mut depth = 0i32;
    let close = code.as_bytes()[open..].iter().position(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        depth == 0
    })? + open;
    Some(open..close + 1)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0;
    let mut end = at;
    while end < bytes.len() {
        match &bytes[end..] {
            [b'/', b'*', ..] => {
                depth += 1;
                end += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                end += 2;
                if depth == 0 {
                    return end;
                }
            }
            _ => end += 1,
        }
    }
    end
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// `at` itself unless an `r`, some `#` and a quote open a raw string there (`r#name` does not).
fn raw_string_end(bytes: &[u8], at: usize) -> usize {
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let quote = at + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return at;
    }
    let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let inside = &bytes[quote + 1..];
    match inside.windows(closing.len()).position(|window| window == closing) {
        Some(length) => quote + 1 + length + closing.len(),
        None => bytes.len(),
    }
}

/// `at` itself for a lifetime, which no quote closes.
fn character_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let rest = bytes.get(at + 3..).unwrap_or_default();
        return rest.iter().position(|&byte| byte == b'\'').map_or(bytes.len(), |length| at + 4 + length);
    }
    let text = std::str::from_utf8(&bytes[at + 1..]).unwrap_or_default();
    match text.chars().next() {
        Some(c) if text[c.len_utf8()..].starts_with('\'') => at + 2 + c.len_utf8(),
        _ => at,
    }
}

/// Whether the byte before `at` belongs to a word that goes on at `at`; the `b` and `c` of `br"` and `cr"` do not.
fn is_word_before(bytes: &[u8], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|index| bytes[index]) else { return false };
    let is_prefix =
        matches!(before, b'b' | b'c') && !is_word_before_plain(bytes, at - 1) && bytes[at] == b'r';
    is_word(before) && !is_prefix
}

fn is_word_before_plain(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("f(\"x \\\" {\") y", "f(        ) y"),
            ("r#\"a \"b\" c\"# d", "             d"),
            ("br\"{\" d", "b     d"),
            ("for r in x", "for r in x"),
            ("let c = '{'; '\\''; '\\u{7b}' 'ä'", "let c =    ;     ;              "),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("r#type \"é\"", "r#type     "),
        ];
        for (text, wanted) in cases {
            assert_eq!(code(text), wanted, "{text}");
        }
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "trait T {\n    fn declared(&self) -> [u8; 4];\n}\n\nfn outer(f: fn(u8) -> u8)\nwhere\n    u8: Copy,\n{\n    fn inner() {}\n    \"}\";\n}\n";
        let found = functions(&code(text));
        let shown: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(shown, [("outer", 5, 7), ("inner", 9, 1)]);
    }

    #[test]
    fn test_modules_are_cut_out() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(test)]\nfn c() {}\n";
        let kept = without_test_modules(text);
        assert!(kept.contains("fn a") && !kept.contains("fn b") && kept.contains("fn c"));
        assert_eq!(kept.len(), text.len());
    }
}
