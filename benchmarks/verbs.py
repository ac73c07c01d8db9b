"""The verbs wire beside perftest's tools, on one machine with an RDMA device: ratios of medians, runs taken in turn. Then
the whole path of a put with a signal, from a kernel to the peer's wait, and where the difference to the wire goes.

    python benchmarks/verbs.py FOLDER [--device rxe0] [--rounds 3] [--no-kernel]

FOLDER holds gin_verbs_bench and gin_verbs_path, built with -DGIN_BASELINE=ON. In a virtual machine with Soft-RoCE:

    tests/vm/rxe-vm -r FOLDER -- python benchmarks/verbs.py FOLDER

What `gin bench` compiles takes minutes there: run the same sweep outside with GIN_WIRE=shm and a GIN_CACHE_DIR that the
machine sees.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
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

ATTEMPTS = 5

# the stages of gin_verbs_path, in their order
STAGES = {
    "push": "device push: the descriptor is written",
    "take": "the engine takes it",
    "post": "the wire posts it",
    "flight": "until the peer's wait sees the signal",
}


def perftest(tool: str, device: str, nbytes: int, count: int, column: int) -> float:
    """A figure of a tool: microseconds, or GB/s of 1e9 bytes (the tools print MiB/s)."""
    for _ in range(ATTEMPTS):
        value = measured(tool, device, nbytes, count, column)
        # Its clock goes by the processor's frequency, which it measures at its start, and an emulated one at times has none.
        if 0 < value < float("inf"):
            return value * (1 << 20) / 1e9 if tool == "ib_write_bw" else value
    raise SystemExit(f"{tool} said {value} {ATTEMPTS} times: it cannot read this machine's clock")


def measured(tool: str, device: str, nbytes: int, count: int, column: int) -> float:
    """What a tool says, in its own units."""
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
    return float(lines[-1][column])


def run(*command: str, seconds: int = 120, **variables: str) -> str:
    """What a program says. Ends this one where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ | variables
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def wire(folder: Path, test: str, nbytes: int, count: int) -> float:
    """A figure of the wire, in the same units."""
    return float(run(str(folder / "gin_verbs_bench"), test, str(nbytes), str(count)).split()[-1])


def stages(folder: Path, count: int) -> dict[str, float]:
    """Microseconds of each stage between a ring and the peer's wait, by name: see csrc/proxy/path_main.cpp."""
    words = run(str(folder / "gin_verbs_path"), str(count)).split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))


def kernels() -> float:
    """Half the round trip of an 8-byte put with a signal between kernels, microseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.json"
        gin = (sys.executable, "-P", "-m", "gin", "bench", "latency", "--backend", "ibrc_proxy", "--route", "native")
        run(*gin, "-b", "8", "-e", "8", "--json", str(rows), seconds=600, GIN_WIRE="verbs")
        (row,) = json.loads(rows.read_text())["rows"]
    return float(row["median_us"])


def whole_path(folder: Path, rounds: int, with_kernel: bool) -> None:
    """Prints the way of a put with a signal by stages, beside the wire alone."""
    alone: list[float] = []
    taken: list[dict[str, float]] = []
    for _ in range(rounds):
        alone.append(wire(folder, "notify", 8, 1000))
        taken.append(stages(folder, 1000))
    stage = {name: median(one[name] for one in taken) for name in taken[0]}
    print(f"\n8-byte put with signal, one way, us: medians, {rounds} runs of each in turn")
    print(f"  {'the wire alone':<44}{median(alone):10.3f}")
    print(f"  {'ring to the peer':<44}{stage['one_way']:10.3f}")
    for name, what in STAGES.items():
        print(f"    {what:<42}{stage[name]:10.3f}")
    print(f"    {'(completion at its source, beside the last)':<42}{stage['completion']:10.3f}")
    if with_kernel:
        whole = median(kernels() for _ in range(rounds))
        print(f"  {'kernel to kernel (gin bench latency)':<44}{whole:10.3f}")
        print(f"    {'kernels on fibers and their waits':<42}{whole - stage['one_way']:10.3f}")


def repeated(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure over rounds in which they take turns."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [median(column) for column in zip(*taken, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kernel", action="store_true", help="leave gin bench out")
    args = parser.parse_args()
    lacking = [tool for _, _, tool, *_ in ROWS if shutil.which(tool) is None]
    if lacking:
        raise SystemExit(f"{', '.join(lacking)}: not found; install perftest (Debian: apt-get install perftest)")
    for title, test, tool, nbytes, count, column, target in ROWS:
        ours, theirs = repeated(
            args.rounds,
            lambda test=test, nbytes=nbytes, count=count: wire(args.folder, test, nbytes, count),
            lambda tool=tool, nbytes=nbytes, count=count, column=column: perftest(
                tool, args.device, nbytes, count, column
            ),
        )
        print(f"{title:<30} gin {ours:10.4f}  {tool} {theirs:10.4f}  ratio {ours / theirs:.3f} ({target})", flush=True)
    whole_path(args.folder, args.rounds, not args.no_kernel)


main()
