//! Runs a template, such that every step of the engine is as short as its fuel says.
//!
//! The engine counts steps, and the data that they make. But one step may go through a whole value to compare, hash or
//! write it, and that is not counted: sixty lists, each holding the one before twice, are small and have 2^60 elements.
//! A namespace that holds itself has no end at all, and overflows the stack. So a guard is put into the compiled program,
//! before each step that may go through values: it goes through them first, on fuel, and stops at a depth. What is put
//! into a namespace holds no namespace; as nothing else can be changed once it is made, no value holds itself.
//!
//! This needs the engine's instructions, hence its feature `unstable_machinery`.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig};
use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, machinery};

use super::{describe, source};

/// Deepest nesting of values; requests have at most some 130 levels, as JSON is read to a depth of 128.
const DEPTH_MAX: usize = 256;

/// Values that one step of fuel pays for, to go through.
const VALUES_PER_FUEL: u64 = 8;

/// Bytes that one step of fuel pays for, as in the engine.
const BYTES_PER_FUEL: u64 = 64;

/// Takes a value and gives it back. No template can write the names of the guards.
const GUARD: &str = "\0guard";

/// Takes a list of values and gives it back in reverse, which is how the engine unpacks it.
const GUARD_ALL: &str = "\0guard_all";

/// Takes a value for a namespace and gives it back.
const GUARD_OWNED: &str = "\0guard_owned";

/// Filters that look at no more than the outermost level of a value, or are guarded themselves.
const SHALLOW_FILTERS: [&str; 10] =
    ["length", "count", "first", "last", "items", "list", "default", "d", "reverse", "tojson"];

/// Tests that do go through values; all others ask for their kind.
const DEEP_TESTS: [&str; 17] = [
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "eq",
    "equalto",
    "ne",
    "lt",
    "lessthan",
    "le",
    "gt",
    "greaterthan",
    "ge",
    "in",
    "sameas",
];

/// A template, compiled and guarded.
pub(super) struct Compiled<'a> {
    instructions: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
}

/// Makes the guards known.
pub(super) fn add_guards(environment: &mut Environment) {
    environment.remove_global("debug");
    for (name, owned) in [(GUARD, false), (GUARD_OWNED, true)] {
        environment.add_function(name, move |state: &State, value: Value| {
            Walk { state, values: 0, owned }.value(&value, 0).map(|()| value)
        });
    }
    // The list as one value, as an argument by itself may not be the keyword arguments of a call.
    environment.add_function(GUARD_ALL, |state: &State, list: Value| {
        let values: Vec<Value> = list.try_iter()?.collect();
        let mut walk = Walk { state, values: 0, owned: false };
        values.iter().try_for_each(|value| walk.value(value, 0))?;
        Ok::<Value, Error>(values.into_iter().rev().collect())
    });
}

impl<'a> Compiled<'a> {
    /// Compiles a source.
    ///
    /// # Errors
    /// If it does not parse, or has calls that cannot be guarded.
    pub(super) fn new(name: &'a str, source: &'a str) -> Result<Compiled<'a>, crate::Error> {
        let config = TemplateConfig {
            syntax_config: source::syntax(),
            default_auto_escape: Arc::new(|_: &str| AutoEscape::None),
        };
        let compiled = CompiledTemplate::new(name, source, &config).map_err(|error| {
            let (line, reason) = describe(&error);
            crate::Error::TemplateSyntax { line, reason }
        })?;
        let CompiledTemplate { instructions, blocks, .. } = compiled;
        let blocks = blocks.iter().map(|(&name, block)| Ok((name, guarded(block)?)));
        Ok(Compiled {
            instructions: guarded(&instructions)?,
            blocks: blocks.collect::<Result<_, crate::Error>>()?,
        })
    }

    pub(super) fn run(&'a self, environment: &'a Environment<'a>, variables: Value) -> Result<String, Error> {
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let none = AutoEscape::None;
        machinery::eval(environment, &self.instructions, variables, &self.blocks, &mut output, none)?;
        drop(output);
        Ok(text)
    }
}

/// The program with its guards.
fn guarded<'a>(program: &Instructions<'a>) -> Result<Instructions<'a>, crate::Error> {
    let mut places = Vec::new();
    let mut len = 0;
    while let Some(instruction) = program.get(places.len() as u32) {
        let Some(guards) = guards(instruction) else {
            let line = program.get_line(places.len() as u32).unwrap_or(0);
            let reason = "calls with `*` before an argument are not supported".to_owned();
            return Err(crate::Error::TemplateSyntax { line, reason });
        };
        places.push(len);
        len += guards.len() as u32 + 1;
    }
    // One may jump to the end.
    places.push(len);
    let mut out = Instructions::new(program.name(), program.source());
    for pc in 0..places.len() as u32 - 1 {
        let Some(instruction) = program.get(pc) else { break };
        for instruction in guards(instruction).into_iter().flatten().chain([moved(instruction, &places)]) {
            match (program.get_span(pc), program.get_line(pc)) {
                (Some(span), _) => out.add_with_span(instruction, span),
                (None, Some(line)) => out.add_with_line(instruction, line.min(u16::MAX.into()) as u16),
                (None, None) => out.add(instruction),
            };
        }
    }
    Ok(out)
}

/// An instruction whose targets have moved to `places`.
fn moved<'a>(instruction: &Instruction<'a>, places: &[u32]) -> Instruction<'a> {
    let mut instruction = instruction.clone();
    match &mut instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => *target = places[*target as usize],
        _ => {}
    }
    instruction
}

/// What goes before an instruction: guards of the values on the stack that it may go through. None if it is not known how
/// many these are.
fn guards<'a>(instruction: &Instruction<'a>) -> Option<Vec<Instruction<'a>>> {
    let values = match *instruction {
        // The namespace is on top of the value.
        Instruction::SetAttr(_) => {
            let guard = Instruction::CallFunction(GUARD_OWNED, Some(1));
            return Some(vec![Instruction::Swap, guard, Instruction::Swap]);
        }
        Instruction::Emit | Instruction::GetItem => {
            return Some(vec![Instruction::CallFunction(GUARD, Some(1))]);
        }
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
        | Instruction::StringConcat
        | Instruction::Rem => 2,
        Instruction::BuildMap(pairs) => 2 * pairs,
        Instruction::ApplyFilter(name, ..) if SHALLOW_FILTERS.contains(&name) => 0,
        Instruction::PerformTest(name, ..) if !DEEP_TESTS.contains(&name) => 0,
        Instruction::ApplyFilter(_, count, _)
        | Instruction::PerformTest(_, count, _)
        | Instruction::CallFunction(_, count)
        | Instruction::CallMethod(_, count)
        | Instruction::CallObject(count) => count?.into(),
        _ => 0,
    };
    Some(match values {
        0 => Vec::new(),
        // As one list, since the keyword arguments of a call would be taken for those of the guard.
        values => vec![
            Instruction::BuildList(Some(values)),
            Instruction::CallFunction(GUARD_ALL, Some(1)),
            Instruction::UnpackList(values),
        ],
    })
}

/// Goes through values.
struct Walk<'a> {
    state: &'a State<'a, 'a>,
    values: u64,
    /// Whether a namespace is to own them.
    owned: bool,
}

impl Walk<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // What the engine does with a text that is no part of a value is counted.
        if depth > 0 {
            self.values += 1;
            if self.values.is_multiple_of(VALUES_PER_FUEL) {
                self.state.consume_fuel(1)?;
            }
            if let Some(text) = value.as_str() {
                return self.state.consume_fuel(text.len() as u64 / BYTES_PER_FUEL);
            }
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        let refuse = |reason| Err(Error::new(ErrorKind::InvalidOperation, reason));
        if self.owned && object.type_name().ends_with("::Namespace") {
            return refuse("a namespace cannot be put into a namespace".to_owned());
        }
        if depth >= DEPTH_MAX {
            return refuse(format!("a value is nested deeper than {DEPTH_MAX}"));
        }
        match object.repr() {
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.value(&key, depth + 1)?;
                    self.value(&value, depth + 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    if item.kind() == ValueKind::Invalid {
                        break;
                    }
                    self.value(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
