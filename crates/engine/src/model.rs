//! A loaded model: its spec, its weights, its graphs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Metadata, ModelFile};

use crate::accounting::{self, Work};
use crate::error::LoadError;
use crate::experts::ExpertStore;
use crate::graph::{self, Graph, Part};
use crate::models::{ModelSpec, read_spec};
use crate::state::{KvGrowth, KvPool, KvType, ModelIdentity, State, StateLayout};
use crate::weights::{Loading, Progress, Weights};
use crate::{error::StepError, models::TensorId};

/// What the caller decides about loading.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Element type of cached keys and values.
    pub kv: KvType,
    /// How their memory grows.
    pub kv_growth: KvGrowth,
    /// Most tokens of a sequence; the model's own limit if absent.
    pub context_tokens: Option<usize>,
    /// Sequences of full length whose keys and values may be in memory at once; without a limit if absent.
    pub sequences: Option<usize>,
    /// Bytes of states that may be kept of what was read, to be gone on from, on top of those of the sequences.
    pub prefix_bytes: usize,
    /// How weights come into memory.
    pub loading: Loading,
    /// Bytes that a plan gave to this process without its weights: what is not touched of them yet looks available and is not,
    /// so [`Loading::Moved`] leaves it.
    pub promised_bytes: u64,
    /// A file that holds the draft layer.
    pub draft: Option<PathBuf>,
}

/// A model in memory. Never changes once loaded, but for the place where the same weights lie.
pub struct Model {
    /// Shapes and layers.
    pub spec: ModelSpec,
    /// Weights.
    pub weights: Arc<Weights>,
    /// Where routed experts are.
    pub experts: ExpertStore,
    /// Forward pass of the trunk.
    pub trunk: Graph,
    /// Forward pass of the draft layer.
    pub draft: Option<Graph>,
    /// What a sequence keeps for the trunk.
    pub layout: Arc<StateLayout>,
    /// What a sequence keeps for the draft layer.
    pub draft_layout: Option<Arc<StateLayout>>,
    /// Where the trunk's keys and values come from.
    pub kv: Arc<KvPool>,
    /// Where those of the draft layer come from.
    pub draft_kv: Option<Arc<KvPool>>,
    /// See [`LoadOptions::prefix_bytes`].
    pub prefix_bytes: usize,
    /// What states of this model are bound to.
    pub identity: ModelIdentity,
    /// Metadata of the file, for tokenizer and template.
    pub metadata: Metadata,
}

impl Model {
    /// Loads a model: a file, one file of a set, or the folder of a set.
    ///
    /// # Errors
    /// [`LoadError`] names the key, tensor or file at fault.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Model, LoadError> {
        Model::load_file(ModelFile::open(path)?, options, &|_, _| ())
    }

    /// As [`Model::load`], of a file whose headers were read already; `progress` hears of the bytes of weights that are
    /// read, where they are.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_file(
        file: ModelFile,
        options: &LoadOptions,
        progress: Progress<'_>,
    ) -> Result<Model, LoadError> {
        let draft_file = options.draft.as_deref().map(ModelFile::open).transpose()?;
        let mut spec = read_spec(&file, draft_file.as_ref())?;
        let weights = Weights::load(&file, draft_file.as_ref(), &spec, options.loading, progress)?;
        let weights = Arc::new(weights);
        if let Some(divisors) = spec.rope.divisors {
            let values = weights.vector(divisors);
            if let Some(&found) = values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
                let name = spec.tensors[divisors.0 as usize].name.clone();
                return Err(LoadError::TensorValues { name, wanted: "positive divisors", found });
            }
            spec.rope.divide(values);
        }
        let dtype = |id: TensorId| weights.dtype(id);
        let trunk = graph::trunk(&spec, &dtype);
        let draft = spec.draft.as_ref().map(|draft| graph::draft(&spec, draft, &dtype));
        let context_tokens = options.context_tokens.unwrap_or(spec.context_tokens);
        let layout = Arc::new(StateLayout::new(spec.layers.iter(), options.kv, context_tokens));
        let draft_layout = (spec.draft.as_ref())
            .map(|d| Arc::new(StateLayout::new(std::iter::once(&d.layer), options.kv, context_tokens)));
        let kv = KvPool::new(&layout, options.sequences, options.prefix_bytes, options.kv_growth)?;
        let draft_kv = (draft_layout.as_ref())
            .map(|layout| KvPool::new(layout, options.sequences, 0, options.kv_growth))
            .transpose()?;
        let identity = identity(&file, &spec, &weights);
        let experts = ExpertStore::new(&spec, weights.clone());
        let metadata = file.metadata;
        Ok(Model {
            spec,
            weights,
            experts,
            trunk,
            draft,
            layout,
            draft_layout,
            kv,
            draft_kv,
            prefix_bytes: options.prefix_bytes,
            identity,
            metadata,
        })
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`].
    pub fn new_state(&self) -> Result<State, StepError> {
        State::new(self.layout.clone(), &self.kv)
    }

    /// An empty sequence of the draft layer.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`].
    pub fn new_draft_state(&self) -> Result<State, StepError> {
        let layout = self.draft_layout.clone().expect("a model with a draft layer");
        State::new(layout, self.draft_kv.as_ref().expect("a model with a draft layer"))
    }

    /// What each part of a step costs that has a token of each of `sequences`, each behind `cells` others: of weights what
    /// one token reads, of everything else so many times what one does. Which experts several tokens share is up to the router;
    /// [`crate::stage::Stage::take_touched`] has counted them.
    pub fn step_work(&self, sequences: usize, cells: usize) -> BTreeMap<Part, Work> {
        let mut parts =
            accounting::work(&self.spec, self.layout.kv, cells, &|id| self.weights.held_bytes(id));
        for work in parts.values_mut() {
            work.state_bytes *= sequences;
            work.products *= sequences;
        }
        parts
    }

    /// Bytes of weights that one token reads: all but the embedding table, of which it reads a row, with the chosen
    /// experts of each routed layer.
    pub fn active_bytes(&self) -> usize {
        self.step_work(1, 0).values().map(|work| work.weight_bytes).sum()
    }

    /// Multiplications by weights that one token's forward pass makes, without those of the head, which a prompt needs
    /// for its last token only.
    pub fn layer_products(&self) -> usize {
        let layers = self.step_work(1, 0).into_iter().filter(|(part, _)| *part != Part::Head);
        layers.map(|(_, work)| work.products).sum()
    }
}

/// Hash over names, types and shapes of all tensors, the file sizes, the architecture's keys, and some bytes of every
/// weight: another training of the same model differs in nothing else.
fn identity(file: &ModelFile, spec: &ModelSpec, weights: &Weights) -> ModelIdentity {
    let mut text = String::new();
    for tensor in &file.tensors {
        text.push_str(&format!("{} {} {:?};", tensor.name, tensor.dtype.name(), tensor.shape));
    }
    for shard in &file.shards {
        text.push_str(&format!("{};", shard.len));
    }
    let prefix = format!("{}.", spec.architecture);
    for (key, value) in file.metadata.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        text.push_str(&format!("{key} {value:?};"));
    }
    let of_trunk = (0..spec.tensors.len()).filter(|&i| !spec.tensors[i].in_draft_file);
    let mut bytes = text.into_bytes();
    of_trunk.for_each(|i| weights.sample(TensorId(i as u32), &mut bytes));
    ModelIdentity(fnv1a(&bytes))
}

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo): names things, protects nothing.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
