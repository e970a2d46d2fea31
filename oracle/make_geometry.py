"""A model with every count of the real `qwen4exp` model except width, depth, vocabulary and table size.

    python make_geometry.py      -> golden/geometry.json, golden/geometry.npz        (some minutes)

The file itself is not stored (100 MB): geometry.json lists its keys and tensors, and weights are drawn by `draw` from
the tensor's name, exactly representable in f32, so a test draws the same bits. geometry.npz holds the rows that are
read, and what ref_np.py (f64) makes of them.

What is read is longer than the block budget, has two images (three different position axes), a jump to positions
near the end of the real context, and n-gram ids of the real vocabulary, so that hashes have their real size. Tokens are
drawn again, a few rows at a time, until no router and no block selection is near a tie, since f32 could break such a
tie otherwise; exact ties of blocks at score 0 stay (the lower index wins).
"""
from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ggufio
import ref_np

HERE = Path(__file__).resolve().parent
WIDTH, VOCAB, FF, STREAMS, RANK = 64, 512, 32, 4, 320
EXPERTS, USED = 512, 10
HEADS, KV_HEADS, HEAD_DIM = 24, 2, 256
KEY_HEADS, VALUE_HEADS, STATE = 16, 48, 128
INDEX_HEADS, INDEX_DIM, BUDGET, RATIO = 4, 128, 2048, 4
NGRAM, NGRAM_HEADS = 3, 16
RECURRENT = [True, True, True, False, False]     # the last one is the draft layer
NGRAM_LAYER, DRAFT = 1, 4
REAL_VOCAB, RESET, PLACEHOLDER = 248320, 248044, 248056
TOKENS = 2144
IMAGES = {298: (5, 9), 2070: (3, 5)}             # first row -> height, width of the grid
JUMP_ROW, JUMP = 1200, 200_000

# Smallest distance to a tie that rows are drawn for: router logits, block scores, and block scores to zero.
ROUTER_MARGIN, BLOCK_MARGIN, ZERO_MARGIN = 2e-4, 2e-4, 5e-5

FIRST_SPARSE = BUDGET + RATIO - 1
KEPT = sorted({0, 1, 2, 11, 297, 298, 299, 320, 342, 343, 346, 1199, 1200, 1201, *range(2047, 2060), 2069, 2070, 2078,
               2084, 2085, 2087, 2100, *range(TOKENS - 8, TOKENS)})


def splitmix64(v: int) -> int:
    m = (1 << 64) - 1
    v = (v + 0x9E3779B97F4A7C15) & m
    v = ((v ^ v >> 30) * 0xBF58476D1CE4E5B9) & m
    v = ((v ^ v >> 27) * 0x94D049BB133111EB) & m
    return v ^ v >> 31


def draw(name: str, shape, base: float, step: float) -> np.ndarray:
    """base + (2 u - 255) * step, u the bytes of splitmix64(key + 0), splitmix64(key + 1), ..., lowest byte first; the
    key is the FNV-1a hash of the name."""
    key = 0xCBF29CE484222325
    for b in name.encode():
        key = (key ^ b) * 0x100000001B3 & (1 << 64) - 1
    n = int(np.prod(shape))
    v = np.arange(-(-n // 8), dtype=np.uint64) + np.uint64(key)
    with np.errstate(over="ignore"):
        v += np.uint64(0x9E3779B97F4A7C15)
        v = (v ^ v >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        v = (v ^ v >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        v ^= v >> np.uint64(31)
    u = v.astype("<u8").view(np.uint8)[:n].astype(np.float64)
    x = base + (2 * u - 255) * step
    assert (x == x.astype(np.float32)).all(), name
    return x.astype(np.float32).reshape(shape)


def primes(start: int, count: int) -> list[int]:
    out, n = [], start
    while len(out) < count:
        if all(n % d for d in range(2, int(n ** 0.5) + 1)):
            out.append(n)
        n += 1
    return out


def tensors():
    """[name, shape (slowest first), base, step]; a step of 2^-s spreads values with standard deviation 148 * 2^-s."""
    out = []
    flat, inner, channels = STREAMS * WIDTH, VALUE_HEADS * STATE, (2 * KEY_HEADS + VALUE_HEADS) * STATE
    add = lambda name, shape, s, base=0.0, times=1: out.append([name, shape, base, times * 2.0 ** -s])

    def read(prefix, inject=True):
        add(prefix + "_norm.weight", [flat], 9, 1.0)
        add(prefix + "_down.weight", [RANK, flat], 11)
        add(prefix + "_up.weight", [flat, RANK], 10)
        if inject:
            add(prefix + "_inject.weight", [STREAMS, flat], 10)

    # Tokens have something in common, so that keys and queries of the trunk's indexer (whose weights do not average
    # to zero) mostly agree and the worst blocks still have a score; the draft layer's have many blocks at 0.
    add("token_embd.weight", [VOCAB, WIDTH], 7, 0.5)
    add("output.weight", [VOCAB, WIDTH], 9)
    read("output_hc", inject=False)
    add("per_layer_token_embd.weight", [sum(sizes()), WIDTH // NGRAM_HEADS], 7)
    for i, recurrent in enumerate(RECURRENT):
        b = f"blk.{i}."
        read(b + "hc_attn")
        read(b + "hc_ffn")
        if recurrent:
            add(b + "attn_qkv.weight", [channels, WIDTH], 10)
            add(b + "attn_gate.weight", [inner, WIDTH], 10)
            add(b + "ssm_conv1d.weight", [channels, 4], 8)
            add(b + "ssm_beta.weight", [VALUE_HEADS, WIDTH], 10)
            add(b + "ssm_alpha.weight", [VALUE_HEADS, WIDTH], 10)
            add(b + "ssm_dt.bias", [VALUE_HEADS], 7, -3.0)
            add(b + "ssm_a", [VALUE_HEADS], 9, -1.0)
            add(b + "ssm_norm.weight", [STATE], 9, 1.0)
            add(b + "ssm_out.weight", [WIDTH, inner], 13)
        else:
            add(b + "attn_q.weight", [2 * HEADS * HEAD_DIM, WIDTH], 10)
            add(b + "attn_k.weight", [KV_HEADS * HEAD_DIM, WIDTH], 10)
            add(b + "attn_v.weight", [KV_HEADS * HEAD_DIM, WIDTH], 10)
            add(b + "attn_output.weight", [WIDTH, HEADS * HEAD_DIM], 12)
            add(b + "attn_q_norm.weight", [HEAD_DIM], 9, 2.0)
            add(b + "attn_k_norm.weight", [HEAD_DIM], 9, 1.5)
            base = 0.0 if i == DRAFT else 1 / 32
            add(b + "indexer.q_proj.weight", [INDEX_HEADS * INDEX_DIM, WIDTH], 10, base)
            add(b + "indexer.k_proj.weight", [INDEX_DIM, WIDTH], 10, base)
            add(b + "indexer.q_norm.weight", [INDEX_DIM], 9, 1.0)
            add(b + "indexer.k_norm.weight", [INDEX_DIM], 9, 1.0)
        if i == NGRAM_LAYER:
            add(b + "ple_key.weight", [flat, WIDTH], 10)
            add(b + "ple_value.weight", [WIDTH, WIDTH], 10)
            for n in ("key", "query", "conv"):
                add(f"{b}ple_norm_{n}.weight", [flat], 9, 1.0)
            add(b + "ple_conv1d.weight", [flat, 4], 8)
        add(b + "ffn_gate_inp.weight", [EXPERTS, WIDTH], 9)
        add(b + "ffn_gate_exps.weight", [EXPERTS, FF, WIDTH], 10)
        add(b + "ffn_up_exps.weight", [EXPERTS, FF, WIDTH], 10)
        add(b + "ffn_down_exps.weight", [EXPERTS, WIDTH, FF], 10, times=3)
        add(b + "ffn_gate_inp_shexp.weight", [1, WIDTH], 10)
        add(b + "ffn_gate_shexp.weight", [FF, WIDTH], 10)
        add(b + "ffn_up_shexp.weight", [FF, WIDTH], 10)
        add(b + "ffn_down_shexp.weight", [WIDTH, FF], 10)
    b = f"blk.{DRAFT}.nextn."
    add(b + "eh_proj.weight", [WIDTH, 2 * WIDTH], 10)
    add(b + "enorm.weight", [WIDTH], 9, 1.0)
    add(b + "hnorm.weight", [flat], 9, 1.0)
    read(b + "hc_head", inject=False)
    return out


def sizes():
    return primes(500, NGRAM_HEADS)


def metadata():
    """[key, type, value or values]."""
    layers = len(RECURRENT)
    q = lambda k, t, v: [f"qwen4exp.{k}", t, v]
    offsets = [sum(sizes()[:i]) for i in range(NGRAM_HEADS)]
    return [
        ["general.architecture", "string", "qwen4exp"],
        q("block_count", "u32", layers), q("nextn_predict_layers", "u32", 1), q("context_length", "u32", 262144),
        q("embedding_length", "u32", WIDTH),
        q("attention.head_count", "u32", HEADS), q("attention.head_count_kv", "u32", KV_HEADS),
        q("attention.key_length", "u32", HEAD_DIM), q("attention.value_length", "u32", HEAD_DIM),
        q("attention.layer_norm_rms_epsilon", "f32", 1e-6),
        q("attention.recurrent_layers", "bool", RECURRENT), q("full_attention_interval", "u32", 4),
        q("attention.compress_ratios", "i32", [0 if r else RATIO for r in RECURRENT]),
        q("attention.indexer.head_count", "u32", INDEX_HEADS), q("attention.indexer.key_length", "u32", INDEX_DIM),
        q("attention.indexer.top_k", "u32", BUDGET),
        q("rope.dimension_count", "u32", 64), q("rope.dimension_sections", "i32", [11, 11, 10, 0]),
        q("rope.freq_base", "f32", 1e7),
        q("ssm.conv_kernel", "u32", 4), q("ssm.state_size", "u32", STATE), q("ssm.group_count", "u32", KEY_HEADS),
        q("ssm.time_step_rank", "u32", VALUE_HEADS), q("ssm.inner_size", "u32", VALUE_HEADS * STATE),
        q("expert_count", "u32", EXPERTS), q("expert_used_count", "u32", USED),
        q("expert_feed_forward_length", "u32", FF), q("expert_shared_feed_forward_length", "u32", FF),
        q("hyper_connection.count", "u32", STREAMS), q("hyper_connection.low_rank", "u32", RANK),
        q("ple.layers", "i32", [NGRAM_LAYER]), q("ple.ngram_size", "u32", NGRAM), q("ple.heads_per_ngram", "u32", 8),
        q("ple.conv_kernel", "u32", 4), q("ple.eos_token_id", "u32", RESET), q("ple.image_token_id", "u32", PLACEHOLDER),
        q("embedding_length_per_layer_input", "u32", WIDTH // NGRAM_HEADS),
        q("ple.layer_multipliers", "u64", [23703573157769, 20109073645365, 8052911324071]),
        q("ple.head_vocab_sizes", "u64", sizes()), q("ple.head_offsets", "u64", offsets),
    ]


def write(path):
    kinds = {"u32": ggufio.U32, "i32": ggufio.I32, "u64": ggufio.U64, "f32": ggufio.F32, "bool": ggufio.BOOL,
             "string": ggufio.STR}
    kv = ggufio.KV()
    for key, kind, value in metadata():
        kv[key] = (ggufio.ARR, kinds[kind], value) if isinstance(value, list) else (kinds[kind], value)
    ggufio.write(path, kv, [(n, "F32", s, draw(n, s, b, d).tobytes()) for n, s, b, d in tensors()])


def positions():
    """Positions of all rows, and for each row which image row it is (-1: a token)."""
    out, image, cur, images = [], [], 0, 0
    row = 0
    while row < TOKENS:
        if row == JUMP_ROW:
            cur += JUMP
        if row in IMAGES:
            h, w = IMAGES[row]
            for i in range(h * w):
                out.append((cur, cur + i // w, cur + i % w))
                image.append(images)
                images += 1
            cur += max(h, w)
            row += h * w
        else:
            out.append((cur,) * 3)
            image.append(-1)
            cur += 1
            row += 1
    return np.array(out), np.array(image)


def drawn_id(row: int, attempt: int) -> int:
    """An id of the real vocabulary; now and then the reset id."""
    v = splitmix64(row * 1000 + attempt)
    return RESET if row % 97 == 40 else v % REAL_VOCAB


class Margins:
    """Smallest distances to a tie, of rows that were taken."""

    def __init__(self):
        self.router = self.block = self.zero = np.inf
        self.ties = 0

    def check(self, taps, names, dense_until, seen):
        """Margins of these rows, or None if one is too small."""
        new = Margins()
        new.ties = self.ties
        for name in names:
            logits = -np.sort(-taps[name + ".moe.logits"], axis=-1)
            new.router = min(new.router, (logits[:, USED - 1] - logits[:, USED]).min())
            if name + ".idx.q" not in taps:
                continue
            q, pooled = taps[name + ".idx.q"], taps[name + ".idx.pooled"]
            for r in range(len(q)):
                n = (seen + r + 1) // RATIO
                if n <= BUDGET // RATIO:
                    continue
                dots = np.einsum("hd,bd->hb", q[r], pooled[:n]) / np.sqrt(INDEX_DIM)
                score = -np.sort(-np.maximum(dots, 0).sum(0))
                last, first = score[BUDGET // RATIO - 1], score[BUDGET // RATIO]
                if last > 0:
                    new.block = min(new.block, last - first)
                else:
                    new.ties += 1
                if first == 0:
                    new.zero = min(new.zero, np.abs(dots.max(0)).min())
        if new.router < ROUTER_MARGIN or new.block < BLOCK_MARGIN or new.zero < ZERO_MARGIN:
            return None
        return new

    def merge(self, new):
        self.router, self.block = min(self.router, new.router), min(self.block, new.block)
        self.zero, self.ties = min(self.zero, new.zero), new.ties


def main():
    start = time.time()
    recipe = {"keys": metadata(), "tensors": tensors()}
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "geometry.gguf"
    write(path)
    print(f"{path.stat().st_size / 1e6:.1f} MB")
    m = ref_np.Model(path)
    pos, image = positions()
    pictures = draw("images", (image.max() + 1, WIDTH), 0.5, 2.0 ** -7).astype(np.float64)
    embd = m.w("token_embd.weight")

    trunk, draft, margins = m.new_state(), m.new_state(), {"trunk": Margins(), "draft": Margins()}
    ids, kept, rejected = [], {}, 0
    bits, bits_draft = [], []
    hidden = np.zeros((0, STREAMS * WIDTH))      # residuals of trunk rows that the draft layer has yet to read
    first = 0
    while first < TOKENS:
        count = min(32 if first < 2048 else 8, TOKENS - first)
        rows = range(first, first + count)
        for attempt in range(1000):
            new = [PLACEHOLDER if image[r] >= 0 else drawn_id(r, attempt) for r in rows]
            x = np.array([pictures[image[r]] if image[r] >= 0 else embd[i % VOCAB] for r, i in zip(rows, new)])
            t, d, taps, dtaps = trunk.copy(), draft.copy(), {}, {}
            logits = m.forward(t, embd=x, pos=pos[first:first + count], ple_ids=new, tap=taps)
            found = margins["trunk"].check(taps, [f"L{i}" for i in range(DRAFT)], FIRST_SPARSE, first)
            if found is None:
                rejected += 1
                continue
            h = np.concatenate([hidden, t.last_residual])
            seen = first - len(hidden)
            n = len(h) - 1
            tokens = [i % VOCAB for i in new][-n:]
            dlogits, dresidual = m.mtp(d, tokens, h[:n], pos=pos[seen:seen + n], dense=False, tap=dtaps)
            dfound = margins["draft"].check(dtaps, [f"mtp.L{DRAFT}"], FIRST_SPARSE, seen)
            if dfound is not None:
                break
            rejected += 1
        else:
            sys.exit("no rows without near-ties")
        trunk, draft, hidden = t, d, h[n:]
        margins["trunk"].merge(found)
        margins["draft"].merge(dfound)
        ids += new
        keep(kept, first, count, {**{k: v for k, v in taps.items() if wanted(k)}, "logits": logits,
                                  "residual": t.last_residual})
        keep(kept, seen, n, {**{k: v for k, v in dtaps.items() if wanted(k)}, "mtp.logits": dlogits,
                             "mtp.residual": dresidual})
        collect(bits, taps["L3.idx.selected"], first)
        collect(bits_draft, dtaps[f"mtp.L{DRAFT}.idx.selected"], seen)
        first += count
        if first % 256 == 0:
            print(first, f"{time.time() - start:.0f} s", "rejected", rejected, {k: vars(v) for k, v in margins.items()},
                  "std logits", logits.std().round(3), "residual", t.last_residual.std().round(3), flush=True)

    out = {k: np.array(v) for k, v in kept.items()}
    out["L3.idx.selected"], out["mtp.L4.idx.selected"] = np.array(bits), np.array(bits_draft)
    out |= {"ids": np.array(ids, np.int32), "image": image.astype(np.int32), "positions": pos.astype(np.int32),
            "kept": np.array(KEPT, np.int32)}
    out |= state(trunk, "state") | {f"draft_{k}": v for k, v in state(draft, "state").items()}
    out = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in out.items()}
    np.savez_compressed(HERE / "golden/geometry.npz", **out)
    recipe["margins"] = {k: {n: float(x) for n, x in vars(v).items()} for k, v in margins.items()}
    with open(HERE / "golden/geometry.json", "w") as f:
        f.write("{\n")
        for name in ("keys", "tensors"):
            f.write(f'"{name}": [\n' + ",\n".join(json.dumps(x) for x in recipe[name]) + "\n],\n")
        f.write(f'"margins": {json.dumps(recipe["margins"])}\n}}\n')
    print({k: (v.shape, v.dtype) for k, v in out.items()})
    print(f"{time.time() - start:.0f} s, rejected {rejected}")


def wanted(name):
    return name.endswith((".moe.ids", ".moe.weights", ".ple.rows", ".attn.o", "L2.gdn.normed", "L1.ple.out", "L1.out", "L3.in"))


# The wide ones: a few rows show where an error begins.
WIDE = (".attn.o", ".gdn.normed")
WIDE_ROWS = [342, 2050, 2051, TOKENS - 2]


def keep(kept, first, count, values):
    for name, v in values.items():
        for r in range(first, first + count):
            if r in (WIDE_ROWS if name.endswith(WIDE) else KEPT):
                row = v[r - first]
                kept.setdefault(name, []).append(row.astype(np.int32) if row.dtype.kind == "i" else row)


def collect(bits, selected, first):
    """Selected cells of the rows that select, packed, padded to the longest row."""
    for r in range(len(selected)):
        if first + r >= FIRST_SPARSE:
            row = np.zeros(TOKENS, bool)
            row[:selected.shape[1]] = selected[r]
            bits.append(np.packbits(row))


def state(st, name):
    """Samples of what a sequence keeps."""
    out = {}
    for i, S in st.S.items():
        out[f"{name}.L{i}.delta"] = S[::15, ::31, ::17]
        out[f"{name}.L{i}.conv"] = st.conv[i][:, ::37]
    if st.ple_conv is not None:
        out[f"{name}.ple.conv"] = st.ple_conv
        out[f"{name}.ple.ids"] = np.array(st.ple_prev, np.int32)
    for i in st.k:
        last = range(len(st.k[i]) - 1, 0, -307)
        out[f"{name}.L{i}.k"] = np.array([st.k[i][c] for c in last])
        out[f"{name}.L{i}.v"] = np.array([st.v[i][c] for c in last])
    return out


if __name__ == "__main__":
    main()
