//! What is told of a model: read from the headers alone, so that a file of a hundred gigabytes takes no longer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::LoadError;
use engine::inventory::{Part, Role, inventory};
use engine::models::{FeedForward, Mixer, ModelSpec, read_spec};
use gguf::{Metadata, ModelFile, TensorType};

use crate::error::Error;

/// A model's headers, put in order.
pub struct Facts {
    /// The headers.
    pub file: ModelFile,
    /// The model as the engine sees it, or why it does not.
    pub spec: Result<ModelSpec, LoadError>,
    /// What each tensor is for, in the order of the file.
    pub parts: Vec<Part>,
}

/// Sums over some tensors.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub tensors: u64,
    /// Their values.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How many layers there are of each kind.
#[derive(Default, Debug)]
pub struct Layers {
    /// All of the trunk.
    pub all: usize,
    /// With softmax attention.
    pub attention: usize,
    /// Of those, with a selection of blocks.
    pub sparse: usize,
    /// With a gated delta rule.
    pub delta_net: usize,
    /// With experts.
    pub experts: usize,
}

/// A tokenizer's keys.
pub struct TokenizerFacts<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// Tokens.
    pub tokens: usize,
    /// The token that begins a text, and its words.
    pub bos: Option<(u64, String)>,
    /// The token that ends one.
    pub eos: Option<(u64, String)>,
}

/// A chat template, as far as its text tells.
pub struct TemplateFacts {
    /// Letters.
    pub chars: usize,
    /// Whether it speaks of tools.
    pub tools: bool,
    /// Whether it speaks of thinking.
    pub thinking: bool,
}

impl Facts {
    /// Reads the headers.
    ///
    /// # Errors
    /// [`Error::Load`].
    pub fn read(path: &Path) -> Result<Facts, Error> {
        let file = ModelFile::open(path).map_err(|source| Error::Load {
            path: path.to_owned(),
            source: Box::new(LoadError::File(source)),
        })?;
        let spec = read_spec(&file, None);
        let parts = inventory(&file, spec.as_ref().ok());
        Ok(Facts { file, spec, parts })
    }

    /// The architecture's name in the file.
    pub fn architecture(&self) -> &str {
        string(&self.file.metadata, "general.architecture").unwrap_or("unknown")
    }

    /// All of it.
    pub fn total(&self) -> Sum {
        self.parts.iter().fold(Sum::default(), |sum, part| sum.with(part))
    }

    /// Values that the forward pass of one token uses; nothing where the engine does not know the model.
    pub fn active_values(&self) -> Option<u64> {
        self.spec.is_ok().then(|| self.parts.iter().map(|part| part.active_values).sum())
    }

    /// Bytes of those values.
    pub fn active_bytes(&self) -> Option<u64> {
        self.spec.is_ok().then(|| self.parts.iter().map(|part| part.active_bytes).sum())
    }

    /// Bytes of the files, headers and gaps included.
    pub fn file_bytes(&self) -> u64 {
        self.file.shards.iter().map(|shard| shard.len).sum()
    }

    /// Paths and bytes of the files.
    pub fn files(&self) -> Vec<(&PathBuf, u64)> {
        self.file.shards.iter().map(|shard| (&shard.path, shard.len)).collect()
    }

    /// Bits of a weight, over all.
    pub fn bits_per_weight(&self) -> f64 {
        let total = self.total();
        total.bytes as f64 * 8.0 / total.values.max(1) as f64
    }

    /// Sums by what tensors are for, in the order of a forward pass; none where the engine does not know the model.
    pub fn by_role(&self) -> Vec<(Role, Sum)> {
        if self.spec.is_err() {
            return Vec::new();
        }
        let of = |role: Role| {
            let parts = self.parts.iter().filter(|part| part.role == role);
            (role, parts.fold(Sum::default(), |sum, part| sum.with(part)))
        };
        Role::ALL.into_iter().map(of).filter(|(_, sum)| sum.tensors > 0).collect()
    }

    /// Sums by tensor type, the largest first.
    pub fn by_type(&self) -> Vec<(TensorType, Sum)> {
        let mut sums: BTreeMap<TensorType, Sum> = BTreeMap::new();
        for (tensor, part) in self.file.tensors.iter().zip(&self.parts) {
            let sum = sums.entry(tensor.dtype).or_default();
            *sum = sum.with(part);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
        sums
    }

    /// A number under the architecture's prefix.
    pub fn number(&self, key: &str) -> Option<u64> {
        let values = self.file.metadata.integers(&format!("{}.{key}", self.architecture())).ok().flatten()?;
        // A list with a value for each layer is told by its largest.
        values.into_iter().max().and_then(|value| u64::try_from(value).ok())
    }

    /// Tokens in the vocabulary: the rows of the embedding.
    pub fn vocabulary(&self) -> Option<u64> {
        self.file.tensor("token_embd.weight").map(gguf::TensorInfo::rows)
    }

    /// The tokenizer, if the file has one.
    pub fn tokenizer(&self) -> Option<TokenizerFacts<'_>> {
        let metadata = &self.file.metadata;
        let tokens = metadata.strings("tokenizer.ggml.tokens").ok().flatten();
        let token = |key: &str| {
            let id = metadata.integer(&format!("tokenizer.ggml.{key}")).ok().flatten()?;
            let bytes = usize::try_from(id).ok().and_then(|id| tokens?.get(id)).unwrap_or_default();
            Some((id, String::from_utf8_lossy(bytes).into_owned()))
        };
        Some(TokenizerFacts {
            model: string(metadata, "tokenizer.ggml.model")?,
            pre: string(metadata, "tokenizer.ggml.pre"),
            tokens: tokens.map_or(0, gguf::StringArray::len),
            bos: token("bos_token_id"),
            eos: token("eos_token_id"),
        })
    }

    /// The chat template, if the file has one.
    pub fn template(&self) -> Option<TemplateFacts> {
        let text = string(&self.file.metadata, "tokenizer.chat_template")?;
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        Some(TemplateFacts {
            chars: text.chars().count(),
            tools: says(&["tools", "tool_call"]),
            thinking: says(&["enable_thinking", "<think>", "reasoning_content"]),
        })
    }
}

impl Sum {
    fn with(self, part: &Part) -> Sum {
        Sum {
            tensors: self.tensors + 1,
            values: self.values.saturating_add(part.values),
            bytes: self.bytes.saturating_add(part.bytes),
        }
    }
}

impl Layers {
    /// Those of a spec.
    pub fn of(spec: &ModelSpec) -> Layers {
        let mut layers = Layers { all: spec.layers.len(), ..Layers::default() };
        for layer in &spec.layers {
            match &layer.mixer {
                Mixer::Attention(attention) => {
                    layers.attention += 1;
                    layers.sparse += usize::from(attention.indexer.is_some());
                }
                Mixer::DeltaNet(_) => layers.delta_net += 1,
            }
            layers.experts += usize::from(matches!(layer.feed_forward, FeedForward::Experts(_)));
        }
        layers
    }
}

/// A key's text; nothing where it is none, since this only tells what there is.
pub fn string<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a str> {
    metadata.string(key).ok().flatten()
}
