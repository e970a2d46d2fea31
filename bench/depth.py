#!/usr/bin/env python3
"""What a decode step costs after 4,096 tokens and after 262,000, part by part, and how fast the indexer's keys are scanned.

    python3 bench/depth.py target/release/strata MODEL.gguf

Exit code 1 where the step without the indexer grows by 10 % or more, or the scan takes less than 70 % of the bandwidth.
"""
import json
import subprocess
import sys

DEPTHS = (4096, 262_000)


def main():
    strata, model = sys.argv[1:]
    command = [strata, "bench", "-m", model, "-p", "0", "-n", "64", "-d", ",".join(map(str, DEPTHS)),
               "--repeat", "9", "--parts", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    tests = {test["depth"]: test for test in json.loads(done.stdout)["tests"]}
    parts = [{part["part"]: part for part in tests[depth]["parts"]} for depth in DEPTHS]
    for name in parts[0]:
        near, far = (part[name]["seconds_per_token"] * 1e6 for part in parts)
        print(f"{name:16} {near:9.1f} us {far:9.1f} us  x {far / near:.2f}")
    near, far = (sum(p["seconds_per_token"] for n, p in part.items() if n != "indexer") * 1e6 for part in parts)
    grown, scan = far / near - 1, parts[1]["indexer"]["bandwidth_fraction"]
    met = grown < 0.10 and scan >= 0.70
    print(f"figures: step without the indexer {near:.0f} us after {DEPTHS[0]} and {far:.0f} us after {DEPTHS[1]} tokens"
          f" ({grown * 100:+.1f} %); scan {parts[1]['indexer']['seconds_per_token'] * 1e6:.0f} us at {scan * 100:.0f} %"
          f" of bandwidth; {'met' if met else 'missed'}", flush=True)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
