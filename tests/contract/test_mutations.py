"""Mistakes planted in the library's own device code: the conformance suite has to find each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import gin
from gin.platforms.host_compiler import include_folders

PACKAGE = Path(gin.__file__).parent
IMPL = "gin/impl/"


@dataclass(frozen=True)
class Mutation:
    """A text of a header, what it becomes, and where the suite has to notice that."""

    file: str  # in the folder of headers, or in the package
    old: str
    new: str
    cases: tuple[str, ...]  # of which one has to fail
    backend: str = "ibrc_proxy"
    route: str = "native"
    overtaking: bool = True


MUTATIONS = {
    "a signal is applied twice": Mutation(
        f"{IMPL}route.cuh",
        "    add_release(word, signal.add);\n",
        "    add_release(word, signal.add);\n    add_release(word, signal.add);\n",
        ("signal.adds_up",),
        route="direct",
        overtaking=False,
    ),
    "the signal comes before the bytes": Mutation(
        f"{IMPL}transfer.cuh",
        "  platform::copy(coop, to, src.local(src_offset), bytes);\n  if (!signal.present",
        "  if (signal.present && coop.leader()) send_signal(channel, peer, signal, word);\n  signal.present = false;\n"
        "  platform::copy(coop, to, src.local(src_offset), bytes);\n  if (!signal.present",
        ("visibility.large_payload",),
        route="direct",
        overtaking=False,
    ),
    "no fence before an ordered signal": Mutation(
        "gin/backends/nvshmem/device.cuh",
        "nvshmem_fence();",
        ";",
        ("order.ordered_per_peer", "order.covers_a_hundred_puts[ordered signal]"),
        backend="nvshmem",
    ),
    "ordered signals are weak": Mutation(
        "gin/action.cuh",
        "signal.ordered = true;",
        "signal.ordered = false;",
        ("order.ordered_per_peer", "order.covers_a_hundred_puts[ordered signal]"),
    ),
    "quiet waits for nothing": Mutation(
        f"{IMPL}order.cuh",
        "  } else if (coop.leader() && !impl::never_native(comm_)) {\n    status = Backend::quiet(channel());\n",
        "  } else if (false) {\n    status = Backend::quiet(channel());\n",
        ("order.quiet", "visibility.across_contexts"),
    ),
    "flush waits for nothing": Mutation(
        f"{IMPL}order.cuh",
        "GIN_DEVICE Status flush_all(Channel channel) {\n",
        "GIN_DEVICE Status flush_all(Channel channel) {\n  if (channel.comm.size) return {};\n",
        ("local.source_reused[flush]", "local.gets_landed[flush]"),
    ),
    "a barrier does not drain": Mutation(
        f"{IMPL}order.cuh",
        "      if (drain) status = impl::drained(channel());\n",
        "",
        ("barrier.by[block]", "barrier.by[8 blocks]", "barrier.drains_for_others"),
    ),
    "a descriptor is lost where the ring begins again": Mutation(
        "gin/backends/ibrc_proxy/producer.h",
        "  store_slot(&ring.slots[sequence & (ring.depth - 1)], encode(fields, phase(sequence, ring.depth)));\n",
        "  if (sequence == 2 * ring.depth) return;\n"
        "  store_slot(&ring.slots[sequence & (ring.depth - 1)], encode(fields, phase(sequence, ring.depth)));\n",
        ("limits.everything_at_once",),
        overtaking=False,
    ),
}

# Whether a message is overtaken at the very moment at which somebody looks is a matter of luck: several attempts.
PROGRAM = """
import json, sys
from gin.conformance import Plan, run, select
wanted = json.loads(sys.argv[1])
plan = Plan(select(wanted["cases"]), [wanted["backend"]], [wanted["route"]], [2], settings={"timeout": "3s"},
            faults={"overtake": 300} if wanted["overtaking"] else {})
for _ in range(6):
    results = [[result.case, result.outcome, result.reason] for result in run(plan)]
    if any(outcome == "fail" for _, outcome, _ in results):
        break
print(json.dumps(results))
"""


def copy_of_the_library(root: Path) -> None:
    """The package and its headers as they are, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "conformance")
    shutil.copytree(PACKAGE, root / "gin", ignore=ignored, symlinks=True)
    (root / "gin/conformance").symlink_to(PACKAGE / "conformance")
    for library in PACKAGE.glob("*.so"):
        (root / "gin" / library.name).symlink_to(library.resolve())
    tree = PACKAGE.parent / "csrc"
    if not (PACKAGE / "include").is_dir():
        shutil.copytree(tree, root / "csrc")


def headers(root: Path) -> Path:
    """The folder of the copy's device headers."""
    inside = include_folders()[0].relative_to(PACKAGE.parent)
    return root / inside


def mutate(root: Path, mutation: Mutation) -> None:
    path = root / mutation.file
    if not path.exists():
        path = headers(root) / mutation.file
    text = path.read_text()
    assert mutation.old in text, f"{mutation.file} has changed: what is to be planted there has no place any more"
    path.write_text(text.replace(mutation.old, mutation.new))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_mistake_is_found(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    copy_of_the_library(tmp_path)
    mutate(tmp_path, mutation)
    wanted = {
        "cases": mutation.cases,
        "backend": mutation.backend,
        "route": mutation.route,
        "overtaking": mutation.overtaking,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(wanted)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "GIN_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == len(mutation.cases), results
    assert any(outcome == "fail" for _, outcome, _ in results), results
    assert not any("CompileError" in reason for _, _, reason in results), results
