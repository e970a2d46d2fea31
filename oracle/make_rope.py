"""Scaled rotary positions and optional biases: logits of llama.cpp (from the xllamacpp wheel) on rewritten F32 models.

    python make_rope.py          -> golden/rope_cases.json, golden/rope_logits.npz

Every case changes keys (and adds tensors) of a model in models/ and reads a text that goes beyond the original
context. Tests build the same file from the description in rope_cases.json. Rows kept: ROWS.
"""
from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np

import ggufio
import llcpp

HERE = Path(__file__).resolve().parent
TOKENS = [(i * 37 + i * i * 5 + 11) % 900 for i in range(200)]
ROWS = [3, 31, 90, 140, 199]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
# Divisors as Llama 3 files carry them: the slow pairs are divided by more.
DIVISORS = {"rope_freqs.weight": [1.0, 1.0, 1.0, 1.5, 2.5, 4.0, 8.0, 8.0]}
# Every bias a file of `llama` may carry, in one layer.
BIASES = {f"blk.1.{name}.bias": [round(0.4 * math.sin(7 * i + n), 3) for i in range(n)]
          for name, n in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 64),
                          ("ffn_gate", 96), ("ffn_up", 96), ("ffn_down", 64)]}
CASES = {
    "llama-biases": ("llama-tiny", {}, BIASES),
    "llama-none": ("llama-tiny", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    "llama-linear": ("llama-tiny", LINEAR, {}),
    "llama-linear-below-one": ("llama-tiny", {"rope.scaling.type": "linear", "rope.scaling.factor": 0.5}, {}),
    "llama-factor-without-type": ("llama-tiny", {"rope.scaling.factor": 2.0}, {}),
    "llama-old-key": ("llama-tiny", {"rope.scale_linear": 2.0}, {}),
    "llama-factor-zero": ("llama-tiny", {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, {}),
    "llama-linear-attn-factor": ("llama-tiny", LINEAR | {"rope.scaling.attn_factor": 0.8}, {}),
    "llama-attn-factor": ("llama-tiny", {"rope.scaling.attn_factor": 0.8}, {}),
    "llama-yarn": ("llama-tiny", YARN, {}),
    "llama-yarn-attn-factor": ("llama-tiny", YARN | {"rope.scaling.attn_factor": 0.8}, {}),
    "llama-yarn-betas": ("llama-tiny", YARN | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0}, {}),
    "llama-yarn-ext-factor": ("llama-tiny", YARN | {"rope.scaling.yarn_ext_factor": 0.5}, {}),
    "llama-yarn-ignored": ("llama-tiny", YARN | {"rope.scaling.yarn_attn_factor": 0.7, "rope.scaling.yarn_log_multiplier": 0.1}, {}),
    "llama-yarn-factor-one": ("llama-tiny", YARN | {"rope.scaling.factor": 1.0}, {}),
    "llama-yarn-without-original": ("llama-tiny", {"context_length": 1024, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {}),
    "llama-yarn-divisors": ("llama-tiny", YARN, DIVISORS),
    "llama-divisors": ("llama-tiny", {}, DIVISORS),
    "q3-linear": ("q3-tiny", LINEAR, {}),
    "q3-yarn": ("q3-tiny", YARN | {"rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32}, {}),
    "q3next-yarn": ("q3next-tiny", YARN | {"rope.freq_base": 100.0}, {}),
    "q35-linear": ("q35-tiny", LINEAR, {}),
    "q35-yarn": ("q35-tiny", YARN | {"rope.freq_base": 100.0}, {}),
    "q35-yarn-image": ("q35-tiny", YARN | {"rope.freq_base": 100.0, "rope.scaling.original_context_length": 8}, {}),
}


# llama.cpp reads these keys for some architectures only; for the others its context parameters say the same.
PARAMETERS = {"rope.scaling.yarn_beta_fast": "yarn_beta_fast", "rope.scaling.yarn_beta_slow": "yarn_beta_slow",
              "rope.scaling.yarn_ext_factor": "yarn_ext_factor"}


def set_parameters(keys):
    L = llcpp.lib()
    defaults = L.llama_context_default_params

    def changed():
        p = defaults()
        for key, field in PARAMETERS.items():
            if key in keys:
                setattr(p, field, keys[key])
        return p
    L.llama_context_default_params = changed
    return lambda: setattr(L, "llama_context_default_params", defaults)


def rewrite(out, model, keys, tensors):
    path = HERE / "models" / f"{model}-F32.gguf"
    kv = ggufio.raw_kv(path)
    arch = kv["general.architecture"][1]
    for k, v in keys.items():
        kv[f"{arch}.{k}"] = (8, v) if isinstance(v, str) else (4, v) if isinstance(v, int) else (6, v)
    r = ggufio.Reader(path)
    all_tensors = [(n, "F32", r.t[n][1], r.f32(n).astype("<f4").tobytes()) for n in r.t]
    all_tensors += [(n, "F32", (len(v),), np.asarray(v, "<f4").tobytes()) for n, v in tensors.items()]
    ggufio.write(out, kv, all_tensors)


def read(path, image):
    m = llcpp.Model(path)
    c = llcpp.Ctx(m)
    if image:
        im = json.loads((HERE / "golden" / "index.json").read_text())["q35-tiny-image"]
        embd = np.load(HERE / "golden" / "q35-tiny-image.npz")["embd"]
        pos = np.array(im["pos_image"])
        pos4 = np.concatenate([pos.T, np.zeros((1, len(pos)), int)])
        logits = np.concatenate([c.decode(im["before"], 0), c.decode(embd=embd, pos4=pos4),
                                 c.decode(im["after"], im["pos_after"][0][0])])
    else:
        logits = c.decode(TOKENS)[ROWS]
    c.close()
    m.close()
    return logits


if __name__ == "__main__":
    logits, described = {}, {}
    for name, (model, keys, tensors) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            rewrite(path, model, keys, tensors)
            reset = set_parameters(keys)
            found = read(path, name.endswith("image"))
            reset()
        logits[name] = found.astype(np.float32)
        described[name] = {"model": model, "keys": keys, "tensors": tensors}
        same = {n for n, x in logits.items() if n != name and x.shape == found.shape and np.array_equal(x, found)}
        print(f"{name:30s} same as {sorted(same)}")
    text = json.dumps({"tokens": TOKENS, "rows": ROWS, "cases": described}, indent=1)
    (HERE / "golden" / "rope_cases.json").write_text(text + "\n")
    np.savez_compressed(HERE / "golden" / "rope_logits.npz", **logits)
