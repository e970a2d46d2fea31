#!/usr/bin/env python3
"""Memory of a run beside what it may be: weights that are held, planned keys and values, and 150 MiB.

    python3 bench/memory.py --strata target/release/strata [--ctx 4096] [--weights mapped|read] [--csv bench/memory.csv] MODEL ...

Fills nine tenths of the context with a prompt, writes 32 tokens, and looks at RssAnon + RssShmem of /proc/PID/status all
the while; pages of the mapped file are the page cache's and count once, there. Exit code 1 where the most was too much.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import figures

SPARE = 150 << 20
WEIGHTS = ("dense weights", "routed experts", "vectors")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def resident(pid):
    """RssAnon + RssShmem in bytes; 0 once the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields.get(key, "0 kB").split()[0]) for key in ("RssAnon", "RssShmem")) << 10


def measure(a, model):
    shared = ["-m", model, "--ctx", str(a.ctx), "--weights", a.weights]
    plan = json.loads(run(a.strata, "plan", *shared, "--json"))["parts"]
    planned = lambda names: sum(p["bytes"] for p in plan if p["name"] in names and p["place"] == "process")
    held, kv = planned(WEIGHTS), planned(("KV cells", "recurrent state"))
    text = " ".join(["word"] * (a.ctx * 9 // 10))
    command = [a.strata, "run", *shared, "-p", "-", "-n", "32", "--raw", "--temp", "0", "--json"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(text.encode())
    process.stdin.close()
    most = 0
    while process.poll() is None:
        most = max(most, resident(process.pid))
        time.sleep(0.005)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: {process.stderr.read().decode()}")
    bound = held + kv + SPARE
    mib = lambda n: f"{n / 2**20:.0f} MiB"
    print(f"{model}: {mib(most)} at most, of {mib(bound)}: weights {mib(held)}, keys and values {mib(kv)}, spare"
          f" {mib(SPARE)}; {'met' if most <= bound else 'missed'}", flush=True)
    if a.csv:
        mib = lambda n: round(n / 2**20)
        figures.append(a.csv, [dict(file=Path(model).name, ctx=a.ctx, weights=a.weights, most_mib=mib(most),
                                    held_mib=mib(held), kv_mib=mib(kv), bound_mib=mib(bound))])
    return most <= bound


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--strata", required=True)
    p.add_argument("--ctx", type=int, default=4096)
    p.add_argument("--weights", default="mapped", choices=["mapped", "read"])
    p.add_argument("--csv")
    p.add_argument("models", nargs="+")
    a = p.parse_args()
    results = [measure(a, model) for model in a.models]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
