"""Compares `strata` with llama.cpp (PyPI wheel `xllamacpp`) on one model: greedy answers, perplexity, speed.

    python compare_llamacpp.py --model SmolLM2-135M-Instruct.Q4_1.gguf --strata target/release/strata [--text FILE]
        [--parts greedy,perplexity,speed] [--rounds 5]

Greedy: 20 prompts, 32 tokens each, on the model's weights widened to F32, where both engines compute with f32
activations. At the first place where they differ both must have been undecided: the gap between their two best logits is
below 0.15 on either side; at most 4 of the 20 may differ at all. On the file as it is, both round activations to 8 bits,
each in its own way, and greedy answers part early whichever two are compared; so there the yardstick is llama.cpp
against itself with and without flash attention: no more answers differ than between those two, by more than chance
(a margin of 5 of 20).
Perplexity: chunks of 512 tokens, the second half of each scored; within 0.5 %. Speed: prompt of 512 tokens and 128
generated tokens, the engines taking turns, medians, and the ratio's 95 % interval over the rounds by bootstrap; at least
0.7. Prints one JSON object; exits with 1 when a bound is broken.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import llcpp  # noqa: E402
from requantise import copy_keys  # noqa: E402

PROMPTS = [
    "The capital of France is", "Once upon a time there was a small robot who",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n", "The three primary colours are",
    "Water boils at", "My favourite recipe for pancakes starts with", "In 1969, humans first",
    "To sort a list in Python, you can", "The mitochondria is", "A haiku about autumn:\n",
    "Dear Sir or Madam,\nI am writing to", "Photosynthesis is the process by which",
    "SELECT name FROM users WHERE", "The quick brown fox", "Q: What is 12 times 12?\nA:",
    "The main difference between a virus and a bacterium is", "She opened the old wooden door and",
    "List of planets in order from the sun:\n1.", "Machine learning is a field of", "If it rains tomorrow, we will",
]


def strata(args, *words, stdin=None):
    run = subprocess.run([args.strata, words[0], "-m", args.model, *words[1:]], input=stdin,
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"strata {' '.join(words)}: {run.stderr}")
    return json.loads(run.stdout)


def gap(row):
    a = np.partition(row, -2)[-2:]
    return float(abs(a[1] - a[0]))


def widen(path, out):
    """The same model with every tensor in F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    copy_keys(reader, writer)
    for t in reader.tensors:
        shape = [int(n) for n in t.shape[::-1]]
        writer.add_tensor(t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def continuation(model, ids, **options):
    """32 greedy tokens and the gap at each."""
    c = llcpp.Ctx(model, n_ctx=512, kv="F16", **options)
    logits, tokens, gaps = c.decode(ids, all_logits=False), [], []
    for i in range(32):
        tokens.append(int(logits[-1].argmax()))
        gaps.append(gap(logits[-1]))
        logits = c.decode([tokens[-1]], len(ids) + i, all_logits=False)
    c.close()
    return tokens, gaps


def parting(a, b):
    """The first place where two answers differ; one that ended early only counts as far as it goes."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def answer(args, model_path, prompt):
    words = ["run", "--raw", "-p", prompt, "-n", "32", "--temp", "0", "--threads", "2", "--json"]
    return strata(argparse.Namespace(strata=args.strata, model=model_path), *words)["tokens"]


def greedy(args, model):
    out = {"differ": 0, "differences": [], "differ_8bit": 0, "differ_8bit_llamacpp_itself": 0}
    with tempfile.TemporaryDirectory() as folder:
        wide_path = str(Path(folder) / "wide.gguf")
        widen(args.model, wide_path)
        wide = llcpp.Model(wide_path)
        for prompt in PROMPTS:
            ids = strata(args, "tokenize", "-p", prompt, "--json")["tokens"]
            assert ids == model.tokenize(prompt), (prompt, ids, model.tokenize(prompt))
            ours, (theirs, gaps) = answer(args, wide_path, prompt), continuation(wide, ids)
            first = parting(ours, theirs)
            if first is not None:
                out["differ"] += 1
                prefix = ",".join(map(str, ids + ours[:first]))
                namespace = argparse.Namespace(strata=args.strata, model=wide_path)
                own = strata(namespace, "logits", "--kv", "f16", "--json", "--tokens", prefix)["logits"][-1]
                out["differences"].append(
                    {"prompt": prompt, "at": first, "gap": gap(np.array(own)), "gap_llamacpp": gaps[first]})
            (plain, _), (flash, _) = continuation(model, ids), continuation(model, ids, flash=True)
            out["differ_8bit"] += parting(answer(args, args.model, prompt), plain) is not None
            out["differ_8bit_llamacpp_itself"] += parting(plain, flash) is not None
    undecided = all(d["gap"] < 0.15 and d["gap_llamacpp"] < 0.15 for d in out["differences"])
    out["ok"] = (out["differ"] <= 4 and undecided
                 and out["differ_8bit"] <= out["differ_8bit_llamacpp_itself"] + 5)
    return out


def perplexity(args, model):
    text = Path(args.text).read_text()[:20 * 1024]
    path = Path(args.text).with_suffix(".20k")
    path.write_text(text)
    ours = strata(args, "perplexity", "-f", str(path), "--json")["perplexity"]
    ids, ctx = model.tokenize(text), 512
    total, count = 0.0, 0
    for first in range(0, len(ids) - ctx + 1, ctx):
        c = llcpp.Ctx(model, n_ctx=ctx, kv="F16")
        rows = c.decode(ids[first:first + ctx]).astype(np.float64)
        c.close()
        for i in range(ctx // 2, ctx - 1):
            row = rows[i]
            total += np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[first + i + 1]]
            count += 1
    theirs = float(np.exp(total / count))
    return {"ok": abs(ours / theirs - 1) < 0.005, "perplexity": ours, "llamacpp": theirs, "ratio": ours / theirs}


def speed(args, model):
    ours, theirs = {"read": [], "write": []}, {"read": [], "write": []}
    ids = [100 + i * 37 % 1000 for i in range(512)]
    for _ in range(args.rounds):
        for kind, p, n in (("read", "512", "0"), ("write", "0", "128")):
            run = strata(args, "bench", "-p", p, "-n", n, "--repeat", "1", "--threads", "2", "--json")
            ours[kind].append(run["tests"][0]["tokens_per_second"])
        c = llcpp.Ctx(model, n_ctx=1024, kv="F16", flash=True)
        start = time.perf_counter()
        c.decode(ids, all_logits=False)
        theirs["read"].append(512 / (time.perf_counter() - start))
        c.clear()
        token, start = ids[0], time.perf_counter()
        for i in range(128):
            token = int(c.decode([token], i, all_logits=False)[-1].argmax())
        theirs["write"].append(128 / (time.perf_counter() - start))
        c.close()
    out, rng = {"ok": True}, np.random.default_rng(1)
    for kind in ("read", "write"):
        ratio = np.array(ours[kind]) / np.array(theirs[kind])
        means = np.median(rng.choice(ratio, (2000, len(ratio))), axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        out[kind] = {"tokens_per_s": float(np.median(ours[kind])), "llamacpp": float(np.median(theirs[kind])),
                     "ratio": float(np.median(ratio)), "interval_95": [float(low), float(high)]}
        out["ok"] &= float(low) >= 0.7
    return out


def figures(out):
    """One short text per part."""
    if g := out.get("greedy"):
        yield (f"greedy answers that differ: {g['differ']} of {len(PROMPTS)} on F32 weights {g['differ_8bit']} on the file"
               f" ({g['differ_8bit_llamacpp_itself']} llama.cpp from itself)")
    if p := out.get("perplexity"):
        yield f"perplexity {p['perplexity']:.3f} (llama.cpp {p['llamacpp']:.3f})"
    if s := out.get("speed"):
        for kind in ("read", "write"):
            low, high = s[kind]["interval_95"]
            yield (f"{kind} {s[kind]['tokens_per_s']:.0f} tok/s (llama.cpp {s[kind]['llamacpp']:.0f}) ratio"
                   f" {s[kind]['ratio']:.2f} [{low:.2f} {high:.2f}]")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--strata", required=True)
    p.add_argument("--text")
    p.add_argument("--parts", default="greedy,perplexity,speed")
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    model = llcpp.Model(args.model)
    parts = {"greedy": greedy, "perplexity": perplexity, "speed": speed}
    out = {name: parts[name](args, model) for name in args.parts.split(",")}
    print(json.dumps(out, indent=1))
    print("figures: " + "; ".join(figures(out)))
    sys.exit(0 if all(part["ok"] for part in out.values()) else 1)


if __name__ == "__main__":
    main()
