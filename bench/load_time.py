#!/usr/bin/env python3
"""From the start of the process to the first token, with the file in the page cache.

    python3 bench/load_time.py --strata target/release/strata [--rounds 9] [--csv bench/load.csv] MODEL[=SECONDS] ...

The models take turns; medians are printed, and the exit code is 1 where one takes longer than its SECONDS. The time ends
when the first byte of the answer to a prompt of a few tokens comes out.
"""
import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures

PROMPT = "The capital of France is"


def first_byte(strata, model):
    """Seconds to the first byte of the answer, and to the process's end."""
    command = [strata, "run", "-m", model, "-p", PROMPT, "-n", "1", "--raw", "--temp", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    byte = process.stdout.read(1)
    first = time.perf_counter() - began
    _, said = process.communicate()
    if process.returncode != 0 or not byte:
        sys.exit(f"{' '.join(command)}: {said.decode()}")
    return first, time.perf_counter() - began


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--strata", required=True)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--csv")
    p.add_argument("models", nargs="+", metavar="MODEL[=SECONDS]")
    a = p.parse_args()
    models = [(path, float(limit) if limit else None) for path, _, limit in (m.partition("=") for m in a.models)]
    for path, _ in models:
        with open(path, "rb") as file:  # into the page cache
            while file.read(1 << 24):
                pass
    times = {path: [] for path, _ in models}
    for _ in range(a.rounds):
        for path, _ in models:
            times[path].append(first_byte(a.strata, path))
    failed, rows = False, []
    for path, limit in models:
        first, whole = (statistics.median(column) for column in zip(*times[path]))
        late = limit is not None and first > limit
        failed |= late
        bar = f", bar {limit} s: {'missed' if late else 'met'}" if limit else ""
        print(f"{path}: first token after {first:.3f} s (ended after {whole:.3f} s){bar}")
        rows.append(dict(file=Path(path).name, first_token_s=f"{first:.3f}", whole_s=f"{whole:.3f}", bar_s=limit or "",
                         rounds=a.rounds))
    if a.csv:
        figures.append(a.csv, rows)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
