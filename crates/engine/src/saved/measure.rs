//! How fast conversations are saved and loaded, beside the disk.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kernels::Kernels;
use sys::direct;

use super::Conversation;
use super::file::{self, Order};
use crate::model::Model;
use crate::state::State;

/// Bytes of a file, and bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedSpeed {
    /// Bytes of the file.
    pub bytes: u64,
    /// Writing as many bytes and no more than that.
    pub raw_write: f64,
    /// Saving the conversation.
    pub save: f64,
    /// Reading as many bytes and no more than that.
    pub raw_read: f64,
    /// Loading the conversation.
    pub load: f64,
}

/// A conversation of which nothing was computed, to be measured with.
pub struct MeasuredConversation {
    model: Arc<Model>,
    tokens: Arc<[u32]>,
    state: Arc<State>,
}

impl MeasuredConversation {
    /// Of so many tokens, for a model without recurrent layers.
    ///
    /// # Panics
    /// If there is no memory for it, or it does not fit into the context.
    pub fn new(model: &Arc<Model>, tokens: usize, kernels: &Kernels) -> MeasuredConversation {
        let mut state = model.new_state().expect("memory");
        let rows: Vec<[i32; 3]> = (0..tokens as i32).map(|at| [at; 3]).collect();
        state.open(&rows).expect("memory");
        let mut room = Vec::new();
        // Every page is written once, so that it is there.
        for cell in (0..tokens).step_by(16) {
            for (layer, cells) in model.layout.attention.iter().enumerate() {
                let values = vec![cell as f32; cells.kv_heads * cells.head_dim];
                state.store_cell(kernels, layer, cell, &values, &values, &mut room);
            }
        }
        state.keep(tokens);
        let ids = (0..tokens as u32).collect();
        MeasuredConversation { model: model.clone(), tokens: ids, state: Arc::new(state) }
    }

    /// Saves and loads it in `folder`, each beside the disk alone.
    ///
    /// # Errors
    /// Those of files.
    ///
    /// # Panics
    /// If what was loaded is not what was saved.
    pub fn round(&self, folder: &Path) -> io::Result<SavedSpeed> {
        let raw = folder.join("raw");
        let conversation = Conversation { tokens: self.tokens.clone(), states: vec![self.state.clone()] };
        let name = file::name(&self.model, &self.tokens, [self.tokens.len()].into_iter(), 0);
        let order = Order { name, conversation, base: None, carried: Vec::new(), remove: Vec::new() };
        let size = order.bytes_max(&self.model);
        let seconds = |work: &mut dyn FnMut() -> io::Result<()>| {
            let start = Instant::now();
            work().map(|()| start.elapsed().as_secs_f64())
        };
        let mut written = None;
        let raw_write = seconds(&mut || direct::write_raw(&raw, size))?;
        let save = seconds(&mut || {
            written = Some(order.write(folder, &self.model, &|| false)?);
            Ok(())
        })?;
        let (index, bytes) = written.expect("written");
        let raw_read = seconds(&mut || direct::read_raw(&raw, size))?;
        let (path, tokens) = (name.path(folder), self.tokens.len());
        let mut loaded = None;
        let load = seconds(&mut || {
            loaded = file::load(&path, &index, 0, tokens, &self.model, &|| false).ok();
            Ok(())
        })?;
        let same = loaded.is_some_and(|state| {
            let blocks = state.blocks_used().iter().zip(self.state.blocks_used());
            state.tokens() == tokens && blocks.into_iter().all(|(a, b)| a.as_bytes() == b.as_bytes())
        });
        assert!(same, "what was loaded is not what was saved");
        fs::remove_file(&raw)?;
        fs::remove_file(&path)?;
        let [raw_write, raw_read] = [raw_write, raw_read].map(|seconds| size as f64 / seconds);
        let [save, load] = [save, load].map(|seconds| bytes as f64 / seconds);
        Ok(SavedSpeed { bytes, raw_write, save, raw_read, load })
    }
}
