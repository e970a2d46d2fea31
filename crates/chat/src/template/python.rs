//! What templates expect of Python beyond Jinja itself.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that [`to_json`] writes; a value may contain itself.
const DEPTH_MAX: usize = 128;

/// The cause of an error that the template itself raised.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Methods of Python's values.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "format"
        && let Some(text) = value.as_str()
    {
        charge_widths(state, text)?;
    }
    if let Some(text) = value.as_str() {
        match name {
            "split" | "rsplit" => charge_pieces(state, text, args.first().and_then(Value::as_str))?,
            "splitlines" => charge_pieces(state, text, Some("\n"))?,
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Pays for what `"{:1000000000}".format()` would write, which the engine charges for only once it is there.
fn charge_widths(state: &State, format: &str) -> Result<(), Error> {
    let widths = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let bytes = widths.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    state.consume_fuel(bytes / 64)
}

/// The filter `split(separator, maximum)`.
pub(super) fn split(
    state: &State,
    value: &Value,
    separator: Option<Arc<str>>,
    maximum: Option<i64>,
) -> Result<Value, Error> {
    charge_pieces(state, value.as_str().unwrap_or_default(), separator.as_deref())?;
    minijinja::filters::split(value, separator, maximum)
}

/// The filter `lines`.
pub(super) fn lines(state: &State, value: &Value) -> Result<Value, Error> {
    charge_pieces(state, value.as_str().unwrap_or_default(), Some("\n"))?;
    minijinja::filters::lines(value)
}

/// Pays for the pieces of a text, which the engine charges for only once they are there: a list of ten million took half
/// a gigabyte. Without a separator it is split at white space.
fn charge_pieces(state: &State, text: &str, separator: Option<&str>) -> Result<(), Error> {
    let pieces = match separator {
        None => text.split_whitespace().count(),
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
    };
    state.consume_fuel(pieces as u64)
}

/// `raise_exception(reason)`
pub(super) fn raise_exception(reason: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, reason.clone()).with_source(Raised(reason)))
}

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: Python's `json.dumps`.
pub(super) fn to_json(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => return Err(invalid(format!("tojson needs 2 separators, not {}", other.len()))),
    };
    let mut writer = JsonWriter {
        out: String::new(),
        state,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.or(ensure_ascii).unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item,
        key,
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Writes values as `json.dumps` does.
struct JsonWriter<'a> {
    out: String,
    state: &'a State<'a, 'a>,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<usize>,
    /// Between items.
    item: String,
    /// Between key and value.
    key: String,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid(format!("tojson meets a value nested deeper than {DEPTH_MAX}")));
        }
        // The engine charges for the result only once it is there.
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.out += &scalar(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.container(['[', ']'], value.try_iter()?, depth, |this, item| {
                    this.value(&item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(['{', '}'], keys.into_iter(), depth, |this, key| {
                    match key.as_str() {
                        Some(text) => this.string(text)?,
                        None => this.string(&scalar(&key)?)?,
                    }
                    this.state.consume_fuel(this.key.len() as u64 / 64)?;
                    this.out += &this.key;
                    this.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson cannot write a value that is {kind}"))),
        }
        Ok(())
    }

    fn container(
        &mut self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.state.consume_fuel(self.item.len() as u64 / 64)?;
                self.out += &self.item;
            }
            empty = false;
            self.line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// A new line, if the text is laid out.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out += &format!("\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// `None`, a bool or a number in JSON.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(value.is_true().to_string()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(value.clone())?)),
        kind => Err(invalid(format!("tojson cannot write a key that is {kind}"))),
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, with an exponent outside 1e-4 .. 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent is written");
    let exponent: i32 = exponent.parse().expect("it is a number");
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `strftime_now(format)` at a local time, in seconds since 1970: Python's `strftime` in the C locale.
pub(super) fn strftime(time_s: i64, format: &str) -> Result<String, Error> {
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, second) = (time_s.div_euclid(86_400), time_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next().unwrap_or(' ');
        let width = if directive == '-' { 1 } else { 2 };
        if directive == '-' {
            directive = chars.next().unwrap_or(' ');
        }
        let number = |value: i64| format!("{value:0width$}");
        out += &match directive {
            'Y' => format!("{year}"),
            'y' => number(year.rem_euclid(100)),
            'm' => number(month),
            'd' => number(day),
            'e' => format!("{day:2}"),
            'H' => number(hour),
            'I' => number((hour + 11) % 12 + 1),
            'M' => number(minute),
            'S' => number(second),
            'j' => {
                format!("{:0w$}", days - days_from_civil(year, 1, 1) + 1, w = if width == 1 { 1 } else { 3 })
            }
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            '%' => "%".to_owned(),
            other => return Err(invalid(format!("strftime_now does not know %{other}"))),
        };
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970-01-01. Years start in March here, so that the leap day is the last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::NAN, "NaN"),
        ];
        for (number, expected) in cases {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn times_are_written_as_python_does() {
        let check = |time_s, format, expected| assert_eq!(strftime(time_s, format).unwrap(), expected);
        check(0, "%d %b %Y %A %H:%M:%S", "01 Jan 1970 Thursday 00:00:00");
        check(951_782_399, "%Y-%m-%d %I:%M %p %j", "2000-02-28 11:59 PM 059");
        check(951_782_400, "%-d %B %y, %a %e %%", "29 February 00, Tue 29 %");
        check(-1, "%F %T", "1969-12-31 23:59:59");
        assert!(strftime(0, "%Q").unwrap_err().to_string().contains("%Q"));
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for days in -800_000..800_000 {
            let (year, month, day) = civil(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }
}
