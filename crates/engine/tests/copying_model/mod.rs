//! Models whose answer is a copy of a marker in their prompt, and of nothing else: weights made by hand.
//!
//! A marker is four digits, each a token for its place; all other tokens are filler. Every place is remembered by a layer
//! of its own: a delta net writes the digit under its place and reads it back, an attention layer looks for the cell that has
//! it. So an answer is right only if all of that state is the conversation's own, and a foreign marker shows by its digits.

use std::path::{Path, PathBuf};

use crate::rewrite::Parts;

/// Digits of a marker.
pub const PLACES: usize = 4;
/// What a digit may be.
pub const DIGITS: usize = 16;

/// The tokens of marker number `number`.
pub fn marker(number: usize) -> [u32; PLACES] {
    std::array::from_fn(|place| (place * DIGITS + number / DIGITS.pow(place as u32) % DIGITS) as u32)
}

/// Tokens from this one on are filler.
pub const FIRST_FILLER: u32 = (PLACES * DIGITS) as u32;

// Columns of the residual. A token has four of the first ones, so that all are of one length.
const DIGIT: usize = 0;
const PLACE: usize = 16;
const FILLER: usize = 20;
const ALWAYS: usize = 21;
const NEXT: usize = 22;
const SPARE: usize = 26;
/// The digit that a layer remembers.
const FOUND: usize = 27;

/// What keys of attention are looked for in: columns of a head that no position turns, as `freq_base` is.
const KEY: usize = 8;

/// Rewrites a model of the oracle: `places[i]` are the places that layer `i` remembers.
struct Maker<'a> {
    parts: &'a mut Parts,
    width: usize,
}

impl Maker<'_> {
    /// Sets a matrix `[outputs][inputs]` to these `(output, input, value)`, zero elsewhere; nothing where the file has none.
    fn matrix(&mut self, name: &str, cells: &[(usize, usize, f32)]) {
        if !self.parts.has(name) {
            return;
        }
        let tensor = self.parts.tensor(name);
        let inputs = tensor.shape[0] as usize;
        *tensor = tensor.map(|at, _| {
            let found = cells.iter().find(|(output, input, _)| output * inputs + input == at);
            found.map_or(0.0, |&(.., value)| value)
        });
    }

    fn fill(&mut self, name: &str, value: f32) {
        if self.parts.has(name) {
            let tensor = self.parts.tensor(name);
            *tensor = tensor.map(|_, _| value);
        }
    }

    /// A layer of which nothing comes but what is written afterwards.
    fn silence(&mut self, layer: usize) {
        let norms =
            ["attn_norm", "post_attention_norm", "ffn_norm", "ssm_norm", "attn_q_norm", "attn_k_norm"];
        for norm in norms {
            self.fill(&format!("blk.{layer}.{norm}.weight"), 1.0);
        }
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            self.fill(&format!("blk.{layer}.{name}.weight"), 0.0);
        }
    }

    /// `softmax(q k)` picks the cells of the place that comes next, or those of filler, whose values are nothing.
    fn attention(&mut self, layer: usize, places: &[usize], head_dim: usize, gated: bool) {
        let (b, elsewhere) = (format!("blk.{layer}"), KEY + PLACES);
        let mine = |place: &usize| places.contains(place);
        let key = |place: usize| if mine(&place) { KEY + place } else { elsewhere };
        let mut q: Vec<_> = (0..PLACES).map(|place| (key(place), NEXT + place, 8.0)).collect();
        if gated {
            q.extend((0..head_dim).map(|i| (head_dim + i, ALWAYS, 10.0)));
        }
        let mut k: Vec<_> = (0..PLACES).filter(mine).map(|place| (KEY + place, PLACE + place, 8.0)).collect();
        k.push((elsewhere, FILLER, 8.0));
        self.matrix(&format!("{b}.attn_q.weight"), &q);
        self.matrix(&format!("{b}.attn_k.weight"), &k);
        self.fill(&format!("{b}.attn_q_norm.weight"), 8.0);
        // Where a token has no key, its digit counts little; where it has another layer's place it counts nothing.
        let v: Vec<_> = (0..DIGITS).map(|digit| (digit, DIGIT + digit, 0.25)).collect();
        self.matrix(&format!("{b}.attn_v.weight"), &v);
        let out: Vec<_> = (0..DIGITS).map(|digit| (FOUND + digit, digit, 1.0)).collect();
        self.matrix(&format!("{b}.attn_output.weight"), &out);
    }

    /// One place: its digit is written where its key is, and read back where that place comes next.
    fn delta_net(&mut self, layer: usize, place: usize, (key_heads, key_dim): (usize, usize)) {
        let b = format!("blk.{layer}");
        let (k, v) = (key_heads * key_dim, 2 * key_heads * key_dim);
        // Other tokens have keys and queries that are never written to.
        let mut qkv =
            vec![(0, NEXT + place, 8.0), (k, PLACE + place, 8.0), (1, ALWAYS, 0.01), (k + 2, FILLER, 8.0)];
        qkv.extend((0..DIGITS).map(|digit| (v + digit, DIGIT + digit, 8.0)));
        self.matrix(&format!("{b}.attn_qkv.weight"), &qkv);
        let gate: Vec<_> = (0..DIGITS).map(|digit| (digit, ALWAYS, 2.5)).collect();
        self.matrix(&format!("{b}.attn_gate.weight"), &gate);
        self.matrix(&format!("{b}.ssm_beta.weight"), &[(0, PLACE + place, 40.0), (0, ALWAYS, -20.0)]);
        self.fill(&format!("{b}.ssm_alpha.weight"), 0.0);
        // Nothing is forgotten.
        self.fill(&format!("{b}.ssm_a"), 0.0);
        self.fill(&format!("{b}.ssm_dt.bias"), 0.0);
        let tensor = self.parts.tensor(&format!("{b}.ssm_conv1d.weight"));
        let taps = tensor.shape[0] as usize;
        // Only the token itself.
        *tensor = tensor.map(|at, _| if at % taps == taps - 1 { 1.0 } else { 0.0 });
        let out: Vec<_> = (0..DIGITS).map(|digit| (FOUND + digit, digit, 0.025)).collect();
        self.matrix(&format!("{b}.ssm_out.weight"), &out);
    }

    fn ends(&mut self) {
        let tensor = self.parts.tensor("token_embd.weight");
        let width = self.width;
        *tensor = tensor.map(|at, _| {
            let (token, column) = (at / width, at % width);
            let columns = match token / DIGITS {
                place if place < PLACES => {
                    [DIGIT + token % DIGITS, PLACE + place, ALWAYS, NEXT + (place + 1) % PLACES]
                }
                _ => [FILLER, ALWAYS, NEXT, SPARE],
            };
            if columns.contains(&column) { 1.0 } else { 0.0 }
        });
        let digits = (0..PLACES * DIGITS)
            .flat_map(|token| [(token, NEXT + token / DIGITS, 10.0), (token, FOUND + token % DIGITS, 10.0)]);
        self.matrix("output.weight", &digits.collect::<Vec<_>>());
        self.fill("output_norm.weight", 1.0);
    }
}

/// Three delta-net layers and an attention layer: three places are in matrices, one in cells.
pub fn hybrid(folder: &Path) -> PathBuf {
    let mut parts = Parts::of(&oracle::model("q35-tiny-F32"));
    let mut maker = Maker { parts: &mut parts, width: 64 };
    maker.ends();
    for layer in 0..3 {
        maker.silence(layer);
        maker.delta_net(layer, layer, (2, 16));
    }
    maker.silence(3);
    maker.attention(3, &[3], 32, true);
    parts.write(folder)
}

/// Attention layers only: every place is in cells.
pub fn attentive(folder: &Path) -> PathBuf {
    let mut parts = Parts::of(&oracle::model("q3-tiny-F32"));
    // Positions turn the columns of keys by nothing.
    parts.set("rope.freq_base", 1e30f32);
    let mut maker = Maker { parts: &mut parts, width: 64 };
    maker.ends();
    for (layer, places) in [&[0, 3][..], &[1], &[2]].into_iter().enumerate() {
        maker.silence(layer);
        maker.attention(layer, places, 32, false);
    }
    parts.write(folder)
}
