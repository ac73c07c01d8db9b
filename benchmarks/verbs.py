"""The verbs wire beside perftest's tools, on one machine with an RDMA device: ratios of medians, runs taken in turn.

    python benchmarks/verbs.py FOLDER [--device rxe0] [--rounds 3]

FOLDER holds gin_verbs_bench, built with -DGIN_BASELINE=ON. In a virtual machine with Soft-RoCE:

    tests/vm/rxe-vm -r FOLDER -- python benchmarks/verbs.py FOLDER
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

# what is measured: (our test, perftest's tool, bytes, iterations, column of the tool's last line, what gin may be)
ROWS = (
    ("8-byte put latency, us", "latency", "ib_write_lat", 8, 1000, 4, "at most 1.15"),
    ("signal to its completion, us", "signal", "ib_atomic_lat", 8, 1000, 4, "at most 1.2"),
    ("64 KiB put bandwidth, GB/s", "bandwidth", "ib_write_bw", 65536, 500, 3, "at least 0.95"),
)


def perftest(tool: str, device: str, nbytes: int, count: int, column: int) -> float:
    """A figure of a tool: microseconds, or GB/s of 1e9 bytes (the tools print MiB/s)."""
    size = [] if tool == "ib_atomic_lat" else ["-s", str(nbytes)]
    command = [tool, "-d", device, "-x", "1", "-n", str(count), "-F", *size]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1.0)
        done = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, timeout=120, check=False)
    finally:
        server.kill()
        server.wait()
    lines = [line.split() for line in done.stdout.splitlines() if re.match(r"\s*[0-9]+\s+[0-9]+\s", line)]
    if not lines:
        raise SystemExit(f"{tool} says no figures: {done.stdout}{done.stderr}")
    value = float(lines[-1][column])
    return value * (1 << 20) / 1e9 if tool == "ib_write_bw" else value


def wire(folder: Path, test: str, nbytes: int, count: int) -> float:
    """A figure of the wire, in the same units."""
    command = [str(folder / "gin_verbs_bench"), test, str(nbytes), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return float(done.stdout.split()[-1])


def repeated(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure over rounds in which they take turns."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [median(column) for column in zip(*taken, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for title, test, tool, nbytes, count, column, target in ROWS:
        ours, theirs = repeated(
            args.rounds,
            lambda test=test, nbytes=nbytes, count=count: wire(args.folder, test, nbytes, count),
            lambda tool=tool, nbytes=nbytes, count=count, column=column: perftest(
                tool, args.device, nbytes, count, column
            ),
        )
        print(f"{title:<30} gin {ours:10.4f}  {tool} {theirs:10.4f}  ratio {ours / theirs:.3f} ({target})", flush=True)


main()
