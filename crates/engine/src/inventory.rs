//! What the tensors of a file are for, and how much of each a token uses: from the header alone, no weight is read.

use std::collections::HashMap;

use gguf::ModelFile;

use crate::models::{
    AttentionSpec, DeltaNetSpec, DraftSpec, ExpertsSpec, FeedForward, GateUp, GatedMlp, LayerSpec, Linear,
    Mixer, ModelSpec, NgramSpec, QkvProjection, ReadSpec, TensorId,
};

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The embedding; the head too, where that has no tensor of its own.
    Embedding,
    /// Softmax attention, with its indexer.
    Attention,
    /// Gated delta rule.
    DeltaNet,
    /// Dense feed-forward blocks.
    FeedForward,
    /// Routed experts.
    Experts,
    /// The expert that every token uses, and its gate.
    SharedExpert,
    /// Routers.
    Router,
    /// Norms between blocks.
    Norm,
    /// Reading and writing several residual streams.
    Streams,
    /// The n-gram table and what leads from it into the residual.
    Ngram,
    /// The head.
    Head,
    /// The model's own draft layer.
    Draft,
    /// Nothing that this engine knows.
    Unused,
}

impl Role {
    /// Every role, in the order of a forward pass.
    pub const ALL: [Role; 13] = [
        Role::Embedding,
        Role::Ngram,
        Role::Attention,
        Role::DeltaNet,
        Role::Router,
        Role::Experts,
        Role::SharedExpert,
        Role::FeedForward,
        Role::Norm,
        Role::Streams,
        Role::Head,
        Role::Draft,
        Role::Unused,
    ];

    /// For people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Embedding => "embedding",
            Role::Attention => "attention",
            Role::DeltaNet => "delta net",
            Role::FeedForward => "dense feed-forward",
            Role::Experts => "experts",
            Role::SharedExpert => "shared expert",
            Role::Router => "router",
            Role::Norm => "norms",
            Role::Streams => "residual streams",
            Role::Ngram => "n-gram",
            Role::Head => "head",
            Role::Draft => "draft layer",
            Role::Unused => "unused",
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is for.
    pub role: Role,
    /// Its values.
    pub values: u64,
    /// Its values that the forward pass of one token uses; of a table, the rows it looks up.
    pub active_values: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes of those values.
    pub active_bytes: u64,
}

/// Every tensor of a file, in the order of [`ModelFile::tensors`]. Without a spec all are [`Role::Unused`].
pub fn inventory(file: &ModelFile, spec: Option<&ModelSpec>) -> Vec<Part> {
    let uses = spec.map(Uses::of).unwrap_or_default();
    let part = |tensor: &gguf::TensorInfo| {
        let values = tensor.row_values() * tensor.rows();
        let found = uses.by_name.get(tensor.name.as_str()).copied();
        let used = found.unwrap_or(Use { role: Role::Unused, share: Share::None });
        let of = |total: u64| match used.share {
            Share::Whole => total,
            // Experts and rows are of equal size.
            Share::Part { used, of } => (u128::from(total) * u128::from(used) / u128::from(of)) as u64,
            Share::None => 0,
        };
        Part {
            role: used.role,
            values,
            active_values: of(values),
            bytes: tensor.len,
            active_bytes: of(tensor.len),
        }
    };
    file.tensors.iter().map(part).collect()
}

#[derive(Clone, Copy)]
struct Use {
    role: Role,
    share: Share,
}

/// How much of a tensor a token uses.
#[derive(Clone, Copy)]
enum Share {
    Whole,
    Part { used: u64, of: u64 },
    None,
}

/// What the tensors of a spec are for, by their names in the file.
#[derive(Default)]
struct Uses<'a> {
    by_name: HashMap<&'a str, Use>,
    by_id: HashMap<TensorId, Use>,
}

impl<'a> Uses<'a> {
    fn of(spec: &'a ModelSpec) -> Uses<'a> {
        let mut uses = Uses::default();
        let rows = |id: TensorId| spec.tensors[id.0 as usize].rows as u64;
        // First, since a head without a tensor of its own uses all of the embedding.
        uses.linear(&spec.output, Role::Head);
        let share = match spec.output.weight == spec.embedding {
            true => Share::Whole,
            false => Share::Part { used: 1, of: rows(spec.embedding) },
        };
        uses.set(spec.embedding, Role::Embedding, share);
        uses.whole(spec.rope.divisors, Role::Attention);
        uses.read(&spec.output_read);
        for layer in &spec.layers {
            uses.layer(layer, &rows);
        }
        if let Some(draft) = &spec.draft {
            uses.draft(draft, &rows);
        }
        let in_file = |id: &TensorId| !spec.tensors[id.0 as usize].in_draft_file;
        uses.by_name = (uses.by_id.iter())
            .filter(|(id, _)| in_file(id))
            .map(|(id, used)| (spec.tensors[id.0 as usize].name.as_str(), *used))
            .collect();
        uses
    }

    fn set(&mut self, id: TensorId, role: Role, share: Share) {
        self.by_id.insert(id, Use { role, share });
    }

    fn whole(&mut self, ids: impl IntoIterator<Item = TensorId>, role: Role) {
        ids.into_iter().for_each(|id| self.set(id, role, Share::Whole));
    }

    fn linear(&mut self, linear: &Linear, role: Role) {
        self.whole([Some(linear.weight), linear.bias, linear.scale].into_iter().flatten(), role);
    }

    fn linears<'l>(&mut self, linears: impl IntoIterator<Item = &'l Linear>, role: Role) {
        linears.into_iter().for_each(|linear| self.linear(linear, role));
    }

    fn mlp(&mut self, mlp: &GatedMlp, role: Role) {
        self.linears([&mlp.gate, &mlp.up, &mlp.down], role);
    }

    fn read(&mut self, read: &ReadSpec) {
        match read {
            ReadSpec::Norm { gamma } => self.whole([*gamma], Role::Norm),
            ReadSpec::Streams { norm, down, up, inject } => {
                self.whole([*norm], Role::Streams);
                self.linears([down, up].into_iter().chain(inject), Role::Streams);
            }
        }
    }

    fn layer(&mut self, layer: &LayerSpec, rows: &impl Fn(TensorId) -> u64) {
        self.read(&layer.mixer_read);
        self.read(&layer.feed_forward_read);
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(attention),
            Mixer::DeltaNet(delta) => self.delta_net(delta),
        }
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => self.mlp(mlp, Role::FeedForward),
            FeedForward::Experts(experts) => self.experts(experts),
        }
        if let Some(ngram) = &layer.ngram {
            self.ngram(ngram, rows);
        }
    }

    fn attention(&mut self, spec: &AttentionSpec) {
        match &spec.projection {
            QkvProjection::Separate { q, k, v } => self.linears([q, k, v], Role::Attention),
            QkvProjection::Fused(qkv) => self.linear(qkv, Role::Attention),
        }
        self.linear(&spec.output, Role::Attention);
        self.whole(spec.q_norm.into_iter().chain(spec.k_norm), Role::Attention);
        if let Some(indexer) = &spec.indexer {
            self.linears([&indexer.q, &indexer.k], Role::Attention);
            self.whole([indexer.q_norm, indexer.k_norm], Role::Attention);
        }
    }

    fn delta_net(&mut self, spec: &DeltaNetSpec) {
        self.linears(spec.projection.linears.iter().chain([&spec.output]), Role::DeltaNet);
        self.whole([spec.convolution, spec.dt_bias, spec.a, spec.norm], Role::DeltaNet);
    }

    fn experts(&mut self, spec: &ExpertsSpec) {
        self.linear(&spec.router, Role::Router);
        let share = Share::Part { used: spec.used as u64, of: spec.experts as u64 };
        let mut stacked = |linear: &Linear| {
            let ids = [Some(linear.weight), linear.bias, linear.scale].into_iter().flatten();
            ids.for_each(|id| self.set(id, Role::Experts, share));
        };
        match &spec.gate_up {
            GateUp::Separate { gate, up } => [gate, up].into_iter().for_each(&mut stacked),
            GateUp::Fused(both) => stacked(both),
        }
        stacked(&spec.down);
        if let Some(shared) = &spec.shared {
            self.mlp(&shared.mlp, Role::SharedExpert);
            self.linear(&shared.gate, Role::SharedExpert);
        }
    }

    fn ngram(&mut self, spec: &NgramSpec, rows: &impl Fn(TensorId) -> u64) {
        let (used, of) = (spec.heads() as u64, rows(spec.table));
        self.set(spec.table, Role::Ngram, Share::Part { used: used.min(of), of });
        self.linears([&spec.key, &spec.value], Role::Ngram);
        let rest = [spec.norm_key, spec.norm_query, spec.norm_convolution, spec.convolution];
        self.whole(rest, Role::Ngram);
    }

    /// A draft layer is no part of a token's forward pass: all its tensors are its own, and none is counted as used.
    fn draft(&mut self, draft: &DraftSpec, rows: &impl Fn(TensorId) -> u64) {
        let mut own = Uses::default();
        own.layer(&draft.layer, rows);
        own.read(&draft.output_read);
        own.linear(&draft.combine, Role::Draft);
        own.whole([draft.embedding_norm, draft.hidden_norm], Role::Draft);
        for id in own.by_id.into_keys() {
            self.by_id.entry(id).or_insert(Use { role: Role::Draft, share: Share::None });
        }
    }
}
