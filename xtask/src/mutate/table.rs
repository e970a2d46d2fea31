//! The mutants: each breaks one rule that makes rows independent of their company.

/// A change of one place in the sources, and the test that must fail then.
#[derive(Debug)]
pub struct Mutant {
    /// What is broken.
    pub name: &'static str,
    /// The file, from the root.
    pub file: &'static str,
    /// Text that stands there once.
    pub old: &'static str,
    /// What takes its place.
    pub new: &'static str,
    /// Which target of `engine`, as Cargo's flag, and the filter of its tests.
    pub test: (&'static str, &'static str),
    /// True for the few that run with every change.
    pub quick: bool,
}

const STATE: &str = "crates/engine/src/state/mod.rs";
const ROWS_AHEAD: &str = "crates/engine/src/state/recurrent.rs";
const CODEC: &str = "crates/engine/src/state/codec.rs";
const CPU: &str = "crates/engine/src/backend/cpu/mod.rs";
const ATTENTION: &str = "crates/engine/src/backend/cpu/attention.rs";
const RECURRENT: &str = "crates/engine/src/backend/cpu/recurrent.rs";
const SAVED_FILE: &str = "crates/engine/src/saved/file.rs";
const SAVED_FOLDER: &str = "crates/engine/src/saved/folder.rs";
const PRODUCTS: &str = "crates/engine/src/backend/cpu/products.rs";

const LLAMA: (&str, &str) = ("--test purity", "rows_are_pure::llama");
const LLAMA_LONG: (&str, &str) = ("--test purity", "long_rows_are_pure::llama");
const EXPERTS: (&str, &str) = ("--test purity", "rows_are_pure::qwen3moe");
const DELTA: (&str, &str) = ("--test purity", "rows_are_pure::qwen35");
const DELTA_LONG: (&str, &str) = ("--test purity", "long_rows_are_pure::qwen35");
const SPARSE: (&str, &str) = ("--test purity", "rows_are_pure::qwen4exp");
const INTEGER: (&str, &str) = ("--test purity", "other_types_are_pure::q8_0");

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "activations are quantised per window, not per row",
        file: PRODUCTS,
        old: "|(((x, q), d), sum16)| self.kernels.quantize_row(x, q, d, sum16));",
        new: "|(((x, q), d), sum16)| {
            let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let x: Vec<f32> = x.iter().map(|v| v / largest).collect();
            self.kernels.quantize_row(&x, q, d, sum16);
            d.iter_mut().for_each(|d| *d *= largest);
        });",
        test: INTEGER,
        quick: true,
    },
    Mutant {
        name: "the groups of a chain are added from its end",
        file: "crates/kernels/src/vector/product.rs",
        old: "for g in 0..count {",
        new: "for g in (0..count).rev() {",
        test: INTEGER,
        quick: false,
    },
    Mutant {
        name: "experts are added from the last when rows have company",
        file: CPU,
        old: "for &assignment in &pass.routing.by_row[row * used..][..used] {",
        new: "let mut order = pass.routing.by_row[row * used..][..used].to_vec();
                if pass.window.rows.len() > 1 {
                    order.reverse();
                }
                for &assignment in &order {",
        test: EXPERTS,
        quick: true,
    },
    Mutant {
        name: "among equal router logits the higher expert wins",
        file: "crates/engine/src/backend/routing.rs",
        old: "expect(\"no NaN\").then(a.cmp(b))",
        new: "expect(\"no NaN\").then(b.cmp(a))",
        test: ("--lib", "routing"),
        quick: false,
    },
    Mutant {
        name: "rows of a tile see each other's cells",
        file: ATTENTION,
        old: "extend(rows.clone().map(|row| task.cells_seen(row, partition) as u16));",
        new: "extend(rows.clone().map(|_| task.cells_seen(rows.end - 1, partition) as u16));",
        test: LLAMA,
        quick: false,
    },
    Mutant {
        name: "a lone row merges partitions from the last",
        file: ATTENTION,
        old: "Step::all(task, item.partitions.clone()).collect();",
        new: "Step::all(task, item.partitions.clone()).collect();
        let steps: Vec<Step<'_>> =
            if task.rows == 1 { steps.into_iter().rev().collect() } else { steps };",
        test: LLAMA_LONG,
        quick: false,
    },
    Mutant {
        name: "only the first raw key of a window is rounded as stored",
        file: ATTENTION,
        old: "if state.layout().kv.indexer_keys() == CellFormat::F16 {",
        new: "if state.layout().kv.indexer_keys() == CellFormat::F16 && row == span.first {",
        test: SPARSE,
        quick: false,
    },
    Mutant {
        name: "rows of a tile share the rotated queries of its first",
        file: ATTENTION,
        old: "row_of(self.buffers, self.q, row)[task.kv_head * width..]",
        new: "row_of(self.buffers, self.q, task.row + 0 * row)[task.kv_head * width..]",
        test: LLAMA,
        quick: false,
    },
    Mutant {
        name: "blocks that the window completes later can be chosen",
        file: ATTENTION,
        old: "(item.visible + row) / self.indexer.block_cells",
        new: "(item.visible + item.selections.len() - 1) / self.indexer.block_cells",
        test: SPARSE,
        quick: false,
    },
    Mutant {
        name: "another thread's band starts at row 0",
        file: CPU,
        old: "f(*first + i, values);",
        new: "f(i + 0 * *first, values);",
        test: DELTA_LONG,
        quick: false,
    },
    Mutant {
        name: "logits are those of the first rows, not of the wanted ones",
        file: CPU,
        old: "let from = pass.outputs[row] as usize;",
        new: "let from = row;",
        test: LLAMA,
        quick: false,
    },
    Mutant {
        name: "replay leaves out the first accepted row",
        file: RECURRENT,
        old: "for row in 0..item.pending.rows {",
        new: "for row in 1..item.pending.rows {",
        test: DELTA,
        quick: true,
    },
    Mutant {
        name: "rows of a draft enter the matrices at once",
        file: RECURRENT,
        old: "match item.span.tentative {\n            false",
        new: "match item.span.tentative && item.head > 99 {\n            false",
        test: DELTA,
        quick: false,
    },
    Mutant {
        name: "a draft's verdict reaches the convolution one row late",
        file: ROWS_AHEAD,
        old: "let kept = keep - self.skipped.min(keep);",
        new: "let kept = (keep - self.skipped.min(keep)).max(1);",
        test: DELTA,
        quick: false,
    },
    Mutant {
        name: "a verdict takes away rows that were accepted before",
        file: ROWS_AHEAD,
        old: "if std::mem::take(&mut self.open) {",
        new: "self.open = false;\n        if self.pending.rows > keep {",
        test: ("--test state", "a_refused_window_changes_no_state"),
        quick: false,
    },
    Mutant {
        name: "n-grams remember rejected tokens",
        file: STATE,
        old: "self.ngram_pending.truncate(keep);",
        new: "",
        test: SPARSE,
        quick: false,
    },
    Mutant {
        name: "raw keys of rejected rows stay",
        file: STATE,
        old: "raw.truncate(held * indexer.head_dim);",
        new: "let _ = held * indexer.head_dim;",
        test: SPARSE,
        quick: false,
    },
    Mutant {
        name: "the block that a fork writes to starts empty",
        file: STATE,
        old: "*block = Arc::new(self.pool.copy_of(&self.layout, block)?);",
        new: "*block = Arc::new(self.pool.block(&self.layout)?);",
        test: LLAMA,
        quick: true,
    },
    Mutant {
        name: "a restored state has forgotten its n-grams",
        file: CODEC,
        old: "*token = self.u32()?;",
        new: "*token = self.u32()? & 1;",
        test: SPARSE,
        quick: false,
    },
    Mutant {
        name: "cells from the disk are not looked at",
        file: SAVED_FILE,
        old: "false if crc32fast::hash(read) != blocks[at].checksum",
        new: "false if blocks.is_empty() && crc32fast::hash(read) != blocks[at].checksum",
        test: ("--test saved", "damaged_files_are_set_aside"),
        quick: false,
    },
    Mutant {
        name: "a block that was not full stays in a file that goes on",
        file: SAVED_FILE,
        old: "before.len() / kernels::PARTITION_CELLS };",
        new: "before.len().div_ceil(kernels::PARTITION_CELLS) };",
        test: ("--test saved", "a_conversation_that_goes_on_is_appended"),
        quick: false,
    },
    Mutant {
        name: "a file without its last generation holds nothing",
        file: "crates/engine/src/saved/index.rs",
        old: "places.sort_by_key(|place| std::cmp::Reverse(place.generation));",
        new: "places.sort_by_key(|place| std::cmp::Reverse(place.generation));
    places.truncate(1);",
        test: ("--test saved", "a_conversation_that_goes_on_is_appended"),
        quick: false,
    },
    Mutant {
        name: "a file that is written anew has lost its beginnings",
        file: SAVED_FOLDER,
        old: "if new(point.tokens) && others.all(",
        new: "if point.tokens == 0 && new(point.tokens) && others.all(",
        test: ("--test saved", "what_is_of_no_use_does_not_pile_up"),
        quick: false,
    },
    Mutant {
        name: "room is made of what a request waits for",
        file: SAVED_FOLDER,
        old: "&& !pinned.contains(at)",
        new: "&& pinned.len() < usize::MAX",
        test: ("--test saved", "what_a_waiting_request_goes_on_from_stays"),
        quick: false,
    },
    Mutant {
        name: "what is written of a deleted conversation stays",
        file: SAVED_FOLDER,
        old: "writing.unwanted.store(true, Ordering::Release);",
        new: "",
        test: ("--lib", "a_deleted_conversation_leaves_nothing"),
        quick: false,
    },
    Mutant {
        name: "conversations leave memory without being written",
        file: "crates/engine/src/prefix.rs",
        old: "if !self.saving || self.branches[branch].saved {",
        new: "if self.clock > 0 {",
        test: ("--lib", "nothing_goes_before_it_was_handed_out"),
        quick: false,
    },
];
