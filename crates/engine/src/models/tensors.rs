//! Naming tensors and checking their shapes.

use std::collections::HashMap;

use gguf::{ModelFile, TensorInfo};

use super::keys::Keys;
use super::{GatedMlp, Linear, ReadSpec};
use crate::error::LoadError;

/// A tensor of a [`super::ModelSpec`], by its place in `tensors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// How a tensor is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it lies in the file: a matrix whose rows are used where they are.
    Rows,
    /// Widened to f32 when the model is loaded: norms, biases and other short vectors.
    Vector,
    /// Widened to f32 and transposed: `{taps, channels}` stored tap by tap.
    Taps,
}

/// One tensor of the file in one role.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Name in the file.
    pub name: String,
    /// True if it lies in the draft layer's own file.
    pub in_draft_file: bool,
    /// How it is held.
    pub form: Form,
    /// Values per row.
    pub row_values: usize,
    /// Rows.
    pub rows: usize,
}

/// Collects bindings while an architecture names its tensors.
pub(super) struct Tensors<'a> {
    file: &'a ModelFile,
    draft_file: Option<&'a ModelFile>,
    bindings: Vec<Binding>,
    by_name: HashMap<(String, bool), TensorId>,
    from_draft_file: bool,
}

impl<'a> Tensors<'a> {
    pub fn new(file: &'a ModelFile, draft_file: Option<&'a ModelFile>) -> Tensors<'a> {
        Tensors { file, draft_file, bindings: Vec::new(), by_name: HashMap::new(), from_draft_file: false }
    }

    pub fn into_bindings(self) -> Vec<Binding> {
        self.bindings
    }

    pub fn has_draft_file(&self) -> bool {
        self.draft_file.is_some()
    }

    /// From here on names are looked up in the draft layer's own file (or in the model's again).
    pub fn use_draft_file(&mut self, on: bool) {
        self.from_draft_file = on && self.draft_file.is_some();
    }

    fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        match self.draft_file {
            Some(draft) if self.from_draft_file => draft.tensor(name),
            _ => self.file.tensor(name),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// A tensor of exactly this shape; trailing extents of 1 may be left out or added by the file.
    fn bind(&mut self, name: &str, wanted: &[usize], form: Form) -> Result<TensorId, LoadError> {
        let strip = |shape: &[usize]| {
            let len = shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
            shape[..len].to_vec()
        };
        let stripped = strip(wanted);
        let Some(info) = self.find(name) else {
            return Err(LoadError::MissingTensor { name: name.to_owned(), wanted: stripped });
        };
        let found: Vec<usize> = info.shape.iter().map(|&n| n as usize).collect();
        if strip(&found) != stripped {
            return Err(LoadError::TensorShape { name: name.to_owned(), found, wanted: stripped });
        }
        Ok(self.add(name, form, wanted[0], wanted[1..].iter().product()))
    }

    fn add(&mut self, name: &str, form: Form, row_values: usize, rows: usize) -> TensorId {
        let key = (name.to_owned(), self.from_draft_file);
        if let Some(&id) = self.by_name.get(&key) {
            return id;
        }
        let id = TensorId(self.bindings.len() as u32);
        let binding =
            Binding { name: name.to_owned(), in_draft_file: self.from_draft_file, form, row_values, rows };
        self.bindings.push(binding);
        self.by_name.insert(key, id);
        id
    }

    /// A short vector, held in f32.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<TensorId, LoadError> {
        self.bind(name, &[len], Form::Vector)
    }

    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<TensorId>, LoadError> {
        self.has(name).then(|| self.vector(name, len)).transpose()
    }

    /// Convolution weights `{taps, channels}`.
    pub fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<TensorId, LoadError> {
        self.bind(name, &[taps, channels], Form::Taps)
    }

    /// A table with rows of `width` values, read row by row; the file says how many rows there are.
    pub fn table(&mut self, name: &str, width: usize) -> Result<(TensorId, usize), LoadError> {
        let info = self
            .find(name)
            .ok_or_else(|| LoadError::MissingTensor { name: name.to_owned(), wanted: vec![width] })?;
        let rows = info.shape.get(1).map_or(1, |&n| n as usize);
        Ok((self.bind(name, &[width, rows], Form::Rows)?, rows))
    }

    /// `<name>.weight` with its optional `.bias` and `.scale`.
    pub fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        self.stacked(name, inputs, outputs, 1)
    }

    pub fn optional_linear(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Option<Linear>, LoadError> {
        self.has(&format!("{name}.weight")).then(|| self.linear(name, inputs, outputs)).transpose()
    }

    /// `<name>.weight` of all experts, `{inputs, outputs, experts}`.
    pub fn stacked(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        experts: usize,
    ) -> Result<Linear, LoadError> {
        let weight = self.bind(&format!("{name}.weight"), &[inputs, outputs, experts], Form::Rows)?;
        let bias = match experts {
            1 => self.optional_vector(&format!("{name}.bias"), outputs)?,
            _ => None,
        };
        let scale = self.scale(&format!("{name}.scale"), experts)?;
        Ok(Linear { weight, bias, scale, inputs, outputs })
    }

    /// What the product is multiplied by: one value, or one per expert.
    fn scale(&mut self, name: &str, experts: usize) -> Result<Option<TensorId>, LoadError> {
        let one = self.find(name).is_some_and(|info| info.shape.iter().all(|&n| n == 1));
        self.optional_vector(name, if one { 1 } else { experts })
    }

    /// `ffn_gate`, `ffn_up`, `ffn_down` of layer prefix `prefix`, with `suffix` behind each (`_shexp`).
    pub fn gated_mlp(
        &mut self,
        prefix: &str,
        suffix: &str,
        width: usize,
        inner: usize,
    ) -> Result<GatedMlp, LoadError> {
        Ok(GatedMlp {
            gate: self.linear(&format!("{prefix}ffn_gate{suffix}"), width, inner)?,
            up: self.linear(&format!("{prefix}ffn_up{suffix}"), width, inner)?,
            down: self.linear(&format!("{prefix}ffn_down{suffix}"), inner, width)?,
        })
    }

    /// A hyper-connection read: `<name>_{norm,down,up}` and, where it writes back, `<name>_inject`.
    pub fn stream_read(
        &mut self,
        name: &str,
        width: usize,
        keys: &Keys<'_>,
        writes: bool,
    ) -> Result<ReadSpec, LoadError> {
        let streams = keys.streams()?;
        let rank = keys.size("hyper_connection.low_rank")?;
        let flat = streams * width;
        Ok(ReadSpec::Streams {
            norm: self.vector(&format!("{name}_norm.weight"), flat)?,
            down: self.linear(&format!("{name}_down"), flat, rank)?,
            up: self.linear(&format!("{name}_up"), rank, flat)?,
            inject: match writes {
                true => Some(self.linear(&format!("{name}_inject"), flat, streams)?),
                false => None,
            },
        })
    }
}
