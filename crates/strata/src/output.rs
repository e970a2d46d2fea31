//! The standard streams.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};

use crate::error::Error;
use crate::progress;

/// Standard output, which may be closed by its reader at any time.
pub struct Output {
    stream: io::StdoutLock<'static>,
    /// Whether a terminal would follow what control characters say.
    terminal: bool,
}

impl Output {
    /// The standard output of this process.
    pub fn new() -> Output {
        let stream = io::stdout().lock();
        Output { terminal: stream.is_terminal(), stream }
    }

    /// Writes a piece of an answer and hands it on at once. What a model writes cannot steer a terminal: control
    /// characters other than line ends and tabs are left out there.
    ///
    /// # Errors
    /// [`Error::ReaderGone`], and [`Error::Io`] for other faults.
    pub fn piece(&mut self, text: &str) -> Result<(), Error> {
        match self.terminal {
            true => self.steer(&harmless(text)),
            false => self.steer(text),
        }
    }

    /// Writes what steers a terminal, and hands it on at once.
    ///
    /// # Errors
    /// As [`Output::piece`].
    pub fn steer(&mut self, text: &str) -> Result<(), Error> {
        self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.flush()).map_err(fault)
    }

    /// Lets `write` write a document, through a buffer.
    ///
    /// # Errors
    /// As [`Output::piece`].
    pub fn document(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
        let mut buffered = io::BufWriter::with_capacity(1 << 16, self.stream);
        write(&mut buffered).and_then(|()| buffered.flush()).map_err(fault)
    }

    /// Writes a JSON value and a line end.
    ///
    /// # Errors
    /// As [`Output::piece`].
    pub fn json(self, value: &serde_json::Value) -> Result<(), Error> {
        self.document(|out| writeln!(out, "{value}"))
    }
}

/// What makes the text behind it dim.
pub const DIM: &str = "\x1b[2m";

/// What ends [`DIM`].
pub const PLAIN: &str = "\x1b[0m";

/// A model's text without what would steer a terminal: control characters other than line ends and tabs.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(steers) {
        true => text.replace(steers, "").into(),
        false => text.into(),
    }
}

/// Whether the user wants colours and the like (see no-color.org), on a terminal that knows them.
pub fn colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// A line on standard error; nobody may be there to read it.
pub fn note(text: Arguments<'_>) {
    let _ = progress::beside(|| writeln!(io::stderr(), "{text}"));
}

/// Bytes in the unit in which people speak of files: powers of ten, three digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Text from a file or the command line as part of one plain sentence: characters that could end the line, steer the
/// terminal or turn the order of letters are written as escapes, and what is too long to read is cut.
pub fn plain(text: &str) -> String {
    const CHARS_MAX: usize = 1000;
    let mut plain = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == CHARS_MAX {
            plain.push_str("...");
            break;
        }
        let turns = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

fn fault(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Error::ReaderGone,
        _ => Error::Io { action: "write to", what: "the standard output".into(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::{harmless, plain, size};

    #[test]
    fn sizes_have_three_digits() {
        let told: Vec<String> =
            [0, 999, 1000, 9994, 9996, 99_960, 999_499, 999_500, 70_123_456_789, u64::MAX]
                .into_iter()
                .map(size)
                .collect();
        let wanted = [
            "0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "100 kB", "999 kB", "1.00 MB", "70.1 GB",
            "18447 PB",
        ];
        assert_eq!(told, wanted);
    }

    #[test]
    fn a_models_text_keeps_lines_and_loses_what_steers() {
        assert_eq!(harmless("a\tb\nö"), "a\tb\nö");
        assert_eq!(harmless("a\u{1b}[2Jb\u{9b}\r\u{7}"), "a[2Jb");
    }

    #[test]
    fn a_sentence_is_one_line_and_steers_no_terminal() {
        assert_eq!(plain("größe"), "größe");
        assert_eq!(plain("a\nb\u{1b}[31m\u{9b}"), "a\\nb\\u{1b}[31m\\u{9b}");
        assert_eq!(plain("\u{202e}fugg\u{2069}"), "\\u{202e}fugg\\u{2069}");
        assert_eq!(plain(&"é".repeat(2000)), "é".repeat(1000) + "...");
    }
}
