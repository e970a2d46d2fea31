//! Fields of a JSON object from outside, taken out one by one into types that cannot hold what makes no sense.
//!
//! Each field is parsed when it is asked for, so that an error names it together with what would do, and one that nobody
//! asks for costs a scan and can hold anything, at any depth. `null` is the same as absent. Of two fields with one name the
//! last counts.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::fault::{Fault, Kind};

/// Most characters of a value that an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Most values of a body. The largest that anybody needs name all tokens of a vocabulary, or a prompt by its ids.
const BODY_VALUES_MAX: usize = 1 << 20;

/// Most values that are handed on, to a template. Each takes some 250 bytes there, where it came as two.
pub(crate) const HANDED_VALUES_MAX: usize = 1 << 18;

/// An object of a request.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// The path to it, with a dot at its end; empty for the body itself.
    prefix: String,
    fields: HashMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// The body of a request.
    ///
    /// # Errors
    /// It is no JSON object, or one of too many values.
    pub fn of_body(body: &'a [u8]) -> Result<Fields<'a>, Fault> {
        let refused = |why: String| Fault::new(Kind::Invalid, why);
        let text = std::str::from_utf8(body).map_err(|error| {
            refused(format!("the body is not UTF-8 text: byte {} cannot be there", error.valid_up_to()))
        })?;
        if values(text) > BODY_VALUES_MAX {
            return Err(refused(format!("the body must have at most {BODY_VALUES_MAX} values")));
        }
        let fields =
            serde_json::from_str(text).map_err(|error| match text.trim_start().starts_with(['[', '"']) {
                true => refused("the body must be a JSON object".into()),
                false => refused(format!("the body must be a JSON object: {error}")),
            })?;
        Ok(Fields { prefix: String::new(), fields })
    }

    /// An object inside of the body.
    ///
    /// # Errors
    /// It is no object.
    pub fn of(value: &'a RawValue, place: &str) -> Result<Fields<'a>, Fault> {
        match serde_json::from_str(value.get()) {
            Ok(fields) => Ok(Fields { prefix: format!("{place}."), fields }),
            Err(_) => Err(wrong(place, "an object", value)),
        }
    }

    /// Where a field stands, as errors name it.
    pub fn place(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The names of all fields, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// A field as it came.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.get(name).copied().filter(|value| value.get() != "null")
    }

    /// A number within a range.
    ///
    /// # Errors
    /// Anything else, what is too large for any number included.
    pub fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        let number = serde_json::from_str(value.get()).ok().filter(|number| bounds.contains(number));
        let wanted = || format!("a number from {} to {}", range.start(), range.end());
        number.map(|number| Some(number as f32)).ok_or_else(|| self.wrong(name, &wanted(), value))
    }

    /// A whole number within a range; 16.0 is one too.
    ///
    /// # Errors
    /// Anything else.
    pub fn whole(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
        let number = whole(value).filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.wrong(name, &wanted(), value))
    }

    /// True or false.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| self.wrong(name, "true or false", value))
    }

    /// A text.
    ///
    /// # Errors
    /// Anything else, half of a surrogate pair included.
    pub fn text(&self, name: &str) -> Result<Option<String>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        text(value, &self.place(name)).map(Some)
    }

    /// A list.
    ///
    /// # Errors
    /// Anything else.
    pub fn list(&self, name: &str) -> Result<Option<Vec<&'a RawValue>>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        list(value).map(Some).ok_or_else(|| self.wrong(name, "a list", value))
    }

    /// An object whose fields are wanted.
    ///
    /// # Errors
    /// Anything else.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Fault> {
        self.raw(name).map(|value| Fields::of(value, &self.place(name))).transpose()
    }

    /// Any value, to be handed on.
    ///
    /// # Errors
    /// It is nested more deeply than 127 levels, holds a number that is none, or too many values.
    pub fn value(&self, name: &str) -> Result<Option<Value>, Fault> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        if values(value.get()) > HANDED_VALUES_MAX {
            return Err(too_many_values(&self.place(name)));
        }
        serde_json::from_str(value.get()).map(Some).map_err(|error| {
            Fault::of_field(
                Kind::Invalid,
                self.place(name),
                format!("`{}` cannot be used: {error}", self.place(name)),
            )
        })
    }

    /// A field that is not what it should be.
    pub fn wrong(&self, name: &str, wanted: &str, found: &RawValue) -> Fault {
        wrong(&self.place(name), wanted, found)
    }
}

/// The values of a JSON text, at most one more than there are for each list or object that is empty.
pub(crate) fn values(json: &str) -> usize {
    let (mut values, mut in_text, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values
}

/// Something that is handed on, and too much.
pub(crate) fn too_many_values(place: &str) -> Fault {
    Fault::of_field(Kind::Invalid, place, format!("`{place}` must have at most {HANDED_VALUES_MAX} values"))
}

/// A list, if it is one.
pub(crate) fn list(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

/// A text.
///
/// # Errors
/// Anything else.
pub(crate) fn text(value: &RawValue, place: &str) -> Result<String, Fault> {
    serde_json::from_str(value.get()).map_err(|_| wrong(place, "text", value))
}

/// A whole number that is not negative.
pub(crate) fn whole(value: &RawValue) -> Option<u64> {
    /// Up to here every whole number is an `f64` of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let as_float = || {
        let number: f64 = serde_json::from_str(value.get()).ok()?;
        (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then_some(number as u64)
    };
    serde_json::from_str(value.get()).ok().or_else(as_float)
}

/// Something that is not what it should be.
pub(crate) fn wrong(place: &str, wanted: &str, found: &RawValue) -> Fault {
    let found = found.get();
    let mut shown: String = found.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < found.len() {
        shown.push_str("...");
    }
    Fault::of_field(Kind::Invalid, place, format!("`{place}` must be {wanted}, not {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: std::fmt::Debug>(
        body: &str,
        take: impl Fn(&Fields<'_>) -> Result<Option<T>, Fault>,
    ) -> Option<String> {
        match take(&Fields::of_body(body.as_bytes()).expect("an object")) {
            Ok(_) => None,
            Err(fault) => Some(fault.message),
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused_with_their_range() {
        let take =
            |value: &str| refusal(&format!("{{\"t\":{value}}}"), |fields| fields.number("t", 0.0..=2.0));
        for fine in ["0", "2", "1.5", "-0.0", "2e0", "null", "0.1e-400"] {
            assert_eq!(take(fine), None, "{fine}");
        }
        for wrong in ["-1", "2.1", "1e400", "-1e400", "1e40", "\"nan\"", "\"1\"", "true", "[1]", "{}"] {
            let wanted = format!("`t` must be a number from 0 to 2, not {wrong}");
            assert_eq!(take(wrong), Some(wanted));
        }
    }

    #[test]
    fn whole_numbers_that_are_none_are_refused_with_their_range() {
        let take = |value: &str| refusal(&format!("{{\"n\":{value}}}"), |fields| fields.whole("n", 1..=9));
        for fine in ["1", "9", "5.0", "null"] {
            assert_eq!(take(fine), None, "{fine}");
        }
        for wrong in
            ["0", "10", "-1", "1.5", "9223372036854775808", "18446744073709551616", "1e400", "\"1\"", "[]"]
        {
            let wanted = format!("`n` must be a whole number from 1 to 9, not {wrong}");
            assert_eq!(take(wrong), Some(wanted));
        }
    }

    #[test]
    fn what_is_long_is_not_repeated() {
        let long = format!("{{\"t\":\"{}\"}}", "é".repeat(100));
        let sentence = refusal(&long, |fields| fields.flag("t")).expect("refused");
        assert_eq!(sentence, format!("`t` must be true or false, not \"{}...", "é".repeat(39)));
    }

    #[test]
    fn bodies_that_are_no_object() {
        let refused = |body: &[u8]| Fields::of_body(body).expect_err("refused").message;
        assert_eq!(refused(b"\"a\xff\""), "the body is not UTF-8 text: byte 2 cannot be there");
        assert_eq!(refused(b"[1]"), "the body must be a JSON object");
        assert!(refused(b"").starts_with("the body must be a JSON object: EOF"));
        assert!(refused(b"{\"a\":1,}").starts_with("the body must be a JSON object: trailing comma"));
        assert!(refused(b"{} x").starts_with("the body must be a JSON object: trailing characters"));
    }

    /// Four bodies of 31 MB, each a list of lists for the template, took 22 GB, and the system ended the server.
    #[test]
    fn values_are_counted_before_they_take_memory() {
        for (json, wanted) in
            [("1", 1), ("[1,2]", 3), ("{\"a,\":[\"[{,\"]}", 3), ("\"\\\",[\"", 1), ("[\"\\\\\",1]", 3)]
        {
            assert_eq!(values(json), wanted, "{json}");
        }
        let of = |values: usize| format!("{{\"v\":[{}0]}}", "0,".repeat(values - 3));
        let handed = |values| refusal(&of(values), |fields| fields.value("v"));
        assert_eq!(handed(HANDED_VALUES_MAX + 1), None);
        let sentence = handed(HANDED_VALUES_MAX + 2).expect("refused");
        assert_eq!(sentence, "`v` must have at most 262144 values");
        assert!(Fields::of_body(of(BODY_VALUES_MAX).as_bytes()).is_ok());
        let fault = Fields::of_body(of(BODY_VALUES_MAX + 1).as_bytes()).expect_err("refused");
        assert_eq!(fault.message, "the body must have at most 1048576 values");
    }

    /// A field that nobody looks at, nested 10,000 deep, ended another server: its parser called itself once per level.
    #[test]
    fn depth_is_no_danger() {
        for depth in [100, 1_000, 100_000, 1_000_000] {
            for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
                let body = format!("{{\"deep\":{}1{},\"n\":3}}", open.repeat(depth), close.repeat(depth));
                let fields = Fields::of_body(body.as_bytes()).expect("an object");
                assert_eq!(fields.whole("n", 1..=9), Ok(Some(3)));
                assert_eq!(fields.value("deep").is_ok(), depth < 128, "{depth}");
            }
        }
    }

    #[test]
    fn the_place_of_a_field_is_its_path() {
        let fields = Fields::of_body(b"{\"a\":{\"b\":[{}]},\"c\":1}").expect("an object");
        let inner = fields.object("a").expect("an object").expect("there");
        assert_eq!(inner.place("b"), "a.b");
        let fault = fields.object("c").expect_err("a number");
        assert_eq!(
            (fault.message.as_str(), fault.field.as_deref()),
            ("`c` must be an object, not 1", Some("c"))
        );
    }

    #[test]
    fn half_a_surrogate_pair_is_no_text() {
        let sentence = refusal("{\"t\":\"\\ud800\"}", |fields| fields.text("t"));
        assert_eq!(sentence.as_deref(), Some("`t` must be text, not \"\\ud800\""));
    }
}
