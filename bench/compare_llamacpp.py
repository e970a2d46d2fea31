"""Compares `strata` with llama.cpp (PyPI wheel `xllamacpp`) on one model: greedy answers, perplexity, speed.

    python compare_llamacpp.py --model SmolLM2-135M-Instruct.Q4_1.gguf --strata target/release/strata [--text FILE]
        [--parts greedy,perplexity,speed] [--rounds 5]

Greedy: 20 prompts, 32 tokens each. At the first place where the engines differ, both must have been undecided: the gap
between their two best logits is below 0.15 on either side; at most 4 of the 20 may differ at all. Perplexity: chunks of
512 tokens, the second half of each scored; within 0.5 %. Speed: prompt of 512 tokens and 128 generated tokens, the
engines taking turns, medians, and the ratio's 95 % interval over the rounds by bootstrap. Prints one JSON object; exits
with 1 when a bound is broken.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import llcpp  # noqa: E402

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
    run = subprocess.run([args.strata, words[0], "-m", args.model, *words[1:], "--threads", "2"], input=stdin,
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"strata {' '.join(words)}: {run.stderr}")
    return json.loads(run.stdout)


def gap(row):
    a = np.partition(row, -2)[-2:]
    return float(abs(a[1] - a[0]))


def greedy(args, model):
    differ, rows = 0, []
    for prompt in PROMPTS:
        ids = strata(args, "tokenize", "-p", prompt, "--json")["ids"]
        assert ids == model.tokenize(prompt), (prompt, ids, model.tokenize(prompt))
        ours = strata(args, "run", "--raw", "-p", prompt, "-n", "32", "--temp", "0", "--json")["tokens"]
        c = llcpp.Ctx(model, n_ctx=512, kv="F16")
        logits, theirs, at = c.decode(ids, all_logits=False), [], []
        for i in range(32):
            at.append(logits[-1])
            theirs.append(int(logits[-1].argmax()))
            if i < len(ours) and theirs[-1] != ours[i]:
                break
            logits = c.decode([theirs[-1]], len(ids) + i)
        c.close()
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if first is None:
            continue
        differ += 1
        prefix = ids + ours[:first]
        own = strata(args, "logits", "--kv", "f16", "--json", "--tokens", ",".join(map(str, prefix)))["logits"][-1]
        rows.append({"prompt": prompt, "at": first, "gap": gap(np.array(own)), "gap_llamacpp": gap(at[first])})
    ok = differ <= 4 and all(r["gap"] < 0.15 and r["gap_llamacpp"] < 0.15 for r in rows)
    return {"ok": ok, "differ": differ, "differences": rows}


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
        run = strata(args, "bench", "-p", "512", "-n", "128", "--repeat", "1", "--json")
        ours["read"].append(run["prompt"]["tokens_per_s"])
        ours["write"].append(run["generation"]["tokens_per_s"])
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
    sys.exit(0 if all(part["ok"] for part in out.values()) else 1)


if __name__ == "__main__":
    main()
