#!/usr/bin/env python3
"""Runs `strata bench --against ...` over model files and appends the figures to a CSV.

    python3 bench/compare_speed.py --strata target/release/strata --csv bench/speed.csv [--rounds 3]
        [-p 128,512,2048] [-n 64] [-d 0,2048] [-b 1] [--against PEER ...] MODEL ...

PEER is what `strata bench --against` takes; --unless FILE-PART=NAME-PART leaves out a peer whose output on a file is wrong
(ik_llama.cpp's on Q4_1: --unless Q4_1=ik_llama_cpp). One row of the CSV for each test and peer. At the end: each test's
ratio to its fastest peer, beside the bar (reading 1.5, writing 1.4, writing after 2048 tokens and more 2).
"""
import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import figures


def label(test):
    if test["kind"] == "read":
        return f"read {test['tokens']}"
    many = f" x {test['sequences']}" if test["sequences"] > 1 else ""
    after = f" after {test['depth']}" if test["depth"] else ""
    return f"write {test['tokens']}{many}{after}"


def bar(test):
    return 1.5 if test["kind"] == "read" else 2.0 if test["depth"] >= 2048 else 1.4


def bench(a, model):
    name = Path(model).name
    wrong = [peer for file, _, peer in (u.partition("=") for u in a.unless) if file in name]
    peers = [peer for peer in a.against if not any(part in peer for part in wrong)]
    words = ["bench", "-m", model, "-p", a.p, "-n", a.n, "-d", a.d, "-b", a.b, "-t", a.t, "--repeat", str(a.rounds)]
    words += [word for peer in peers for word in ("--against", peer)]
    done = subprocess.run([a.strata, *words, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"strata {shlex.join(words)}: exit code {done.returncode}")
    # Folders are this machine's; names are enough to run it again.
    command = "strata " + shlex.join(word if i and words[i - 1] != "-m" else Path(word).name
                                     for i, word in enumerate(shorter(words)))
    return json.loads(done.stdout), command


def shorter(words):
    """Without the folders of programs and scripts."""
    return [" ".join(Path(part).name if "/" in part and not part.startswith("http") else part
                     for part in word.split(" ")) for word in words]


def rows(report, command, model):
    giga = lambda n: f"{n / 1e9:.1f}"
    for test in report["tests"]:
        fraction = test.get("products_fraction", test.get("bandwidth_fraction"))
        ours = dict(threads=report["threads"], isa=report["isa"], file=Path(model).name, test=label(test),
                    tok_s=f"{test['tokens_per_second']:.2f}", of_bound=f"{fraction:.3f}",
                    bandwidth_gb_s=giga(report["bandwidth_bytes_per_second"]),
                    int8_gmac_s=giga(report["int8_products_per_second"]))
        run = dict(rounds=len(test["rounds"]), command="")
        # Once for each test is enough.
        yield ours | dict(peer="", peer_tok_s="", ratio="") | run | dict(command=command)
        for peer in test["peers"]:
            if peer["ratio"] is not None:
                yield ours | dict(peer=peer["name"], peer_tok_s=f"{peer['tokens_per_second']:.2f}",
                                  ratio=f"{peer['ratio']:.3f}") | run


def summary(report, model):
    """Prints a line about the fastest peer of each test; whether all bars are met, and the ratios."""
    met, ratios = True, []
    for test in report["tests"]:
        fraction = test.get("products_fraction", test.get("bandwidth_fraction"))
        text = f"{Path(model).name:28} {label(test):24} {test['tokens_per_second']:9.2f} tok/s {fraction:6.1%} of bound"
        measured = [peer for peer in test["peers"] if peer["ratio"] is not None]
        if measured:
            fastest = min(measured, key=lambda peer: peer["ratio"])
            ok = fastest["ratio"] >= bar(test)
            met &= ok
            ratios.append(f"{label(test)} {fastest['ratio']:.2f}x")
            text += (f"  {fastest['ratio']:5.2f}x of {fastest['name']} ({fastest['tokens_per_second']:.2f}), bar"
                     f" {bar(test)}: {'met' if ok else 'missed'}")
        print(text, flush=True)
    return met, f"{Path(model).name}: " + " ".join(ratios)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--strata", required=True)
    p.add_argument("--csv")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("-p", default="128,512,2048")
    p.add_argument("-n", default="64")
    p.add_argument("-d", default="0,2048")
    p.add_argument("-b", default="1")
    p.add_argument("-t", default="2")
    p.add_argument("--against", action="append", default=[])
    p.add_argument("--unless", action="append", default=[], metavar="FILE-PART=NAME-PART")
    p.add_argument("models", nargs="+")
    a = p.parse_args()
    met, ratios = True, []
    for model in a.models:
        report, command = bench(a, model)
        if a.csv:
            figures.append(a.csv, list(rows(report, command, model)))
        ok, told = summary(report, model)
        met &= ok
        ratios.append(told)
    print("figures: " + "; ".join(ratios))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
