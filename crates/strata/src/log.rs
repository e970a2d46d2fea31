//! What is told on the way, as against results and errors: one line each, on standard error.

use std::fmt;
use std::io::{self, Write};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::{output, progress};

/// Lets messages of this weight and more through, from here to the end of the process.
pub fn start(level: Level) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        // Nobody may be there to read it, which is no reason to stop.
        .log_internal_errors(false)
        .with_writer(|| BesideBar)
        .event_format(Lines)
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("nothing else in this process takes messages");
}

/// Standard error, as long as no bar is in the way.
struct BesideBar;

impl Write for BesideBar {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        progress::beside(|| io::stderr().write(line))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// `WEIGHT: TEXT`, in one line whatever the text holds.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}: {}", weight(*event.metadata().level()), output::plain(&text))
    }
}

fn weight(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}
