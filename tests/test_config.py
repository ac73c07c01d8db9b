"""Settings: parsing, precedence, origins, mistakes, agreement."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gin.config import (
    KNOBS,
    Config,
    check_agreement,
    format_duration,
    format_ranks,
    format_size,
    parse_duration,
    parse_size,
    resolve,
)
from gin.errors import ConfigError, ConfigWarning, UnsupportedError


def config_from(
    directory: Path, arguments: dict[str, object] | None = None, environment: dict[str, str] | None = None
) -> Config:
    return resolve(arguments or {}, environment or {}, directory)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("1", 1), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30), ("1.5K", 1536)),
        *(("3 MB", 3 << 20), ("1T", 1 << 40), (4096, 4096), ("7b", 7)),
    ],
)
def test_sizes(text: object, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "K", "1KK", "1.0001K", "1e3", "0x10", "٣", -1, 1.5, True, None, "9" * 30, []]
)
def test_wrong_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="a size in bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("500ms", 0.5), ("30s", 30), ("2min", 120), ("2m", 120), ("0", 0), ("never", 0), ("1.5", 1.5), (3, 3.0)),
        *(("1h", 3600), ("250us", 250e-6), ("10ns", 10e-9)),
    ],
)
def test_durations(text: object, value: float) -> None:
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "-1s", "1 day", "inf", "nan", "1e999s", -1, math.inf, math.nan, True, None, 10**400]
)
def test_wrong_durations(text: object) -> None:
    with pytest.raises(ValueError, match="a duration"):
        parse_duration(text)


@given(st.integers(0, (1 << 63) - 1))
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.floats(0, 1e9, allow_nan=False))
def test_durations_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text()))


@given(name=st.sampled_from(sorted(KNOBS)), value=JUNK)
def test_junk_is_a_config_error_or_a_value(name: str, value: object) -> None:
    try:
        config = resolve({name: value}, {}, Path("/nonexistent"))
    except (ConfigError, UnsupportedError):
        return
    assert config.describe()


@given(name=st.sampled_from(sorted(KNOBS)), value=st.text(st.characters(exclude_characters="\0")))
def test_shown_values_are_read_back(name: str, value: str) -> None:
    try:
        config = resolve({}, {KNOBS[name].variable: value}, Path("/nonexistent"))
    except (ConfigError, UnsupportedError):
        return
    if KNOBS[name].secret:
        return
    shown = {row.name: row.value for row in config.describe()}[name]
    again = resolve({}, {KNOBS[name].variable: shown}, Path("/nonexistent"))
    assert getattr(again, name) == getattr(config, name)


def test_precedence_and_origins(tmp_path: Path) -> None:
    (tmp_path / "gin.toml").write_text('signals = 1\ncontexts = 2\ncounters = 3\ncheck = true\ncxxflags = ["-g"]\n')
    config = config_from(tmp_path, {"signals": 100, "wire": None}, {"GIN_SIGNALS": "10", "GIN_CONTEXTS": "20"})
    assert (config.signals, config.contexts, config.counters, config.barriers) == (100, 20, 3, 16)
    assert (config.check, config.cxxflags) == (True, ("-g",))
    file = str(tmp_path / "gin.toml")
    origins = [config.origin(name) for name in ("signals", "contexts", "counters", "barriers")]
    assert origins == ["argument", "GIN_CONTEXTS", file, "default"]
    found = config.detected(backend="ibrc_proxy")
    assert (found.backend, found.origin("backend"), found.origin("signals")) == ("ibrc_proxy", "detected", "argument")


def test_file_is_searched_up_to_the_repository_root(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "gin.toml").write_text("signals = 1")
    (tmp_path / "repository" / "pyproject.toml").write_text("[tool.gin]\nsignals = 2")
    (tmp_path / "repository" / "a" / "pyproject.toml").write_text("[tool.other]\nx = 2")
    assert config_from(inner).signals == 64, "without a repository only the folder itself counts"
    (tmp_path / "repository" / ".git").mkdir()
    config = config_from(inner)
    assert (config.signals, config.origin("signals")) == (
        2,
        f"{tmp_path / 'repository' / 'pyproject.toml'} [tool.gin]",
    )
    (inner / "gin.toml").write_text("signals = 3")
    assert config_from(inner).signals == 3
    assert config_from(inner, environment={"GIN_CONFIG": str(tmp_path / "gin.toml")}).signals == 1
    assert config_from(inner, environment={"GIN_CONFIG": ""}).signals == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("signal = 3", "did you mean signals"),
        ("signals = 'many'", "whole number"),
        ("signals = ", "not TOML"),
        ("ring_depth = 5", "power of two"),
        ("ring_depth = 2", "power of two from 4"),
        ("job_secret = 'x'", "GIN_JOB_SECRET"),
        ("backend = 'nvshmen'", "did you mean nvshmem"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "gin.toml").write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        config_from(tmp_path)
    assert str(tmp_path / "gin.toml") in str(caught.value)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="did you mean backend"):
        Config.from_sources(bakend="auto")
    with pytest.raises(ConfigError, match="there is no file /nowhere"):
        config_from(Path("/"), environment={"GIN_CONFIG": "/nowhere"})
    with pytest.warns(ConfigWarning, match=r"GIN_BAKEND .* did you mean GIN_BACKEND"):
        config_from(Path("/"), environment={"GIN_BAKEND": "nvshmem"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config_from(Path("/"), environment={"GIN_RANK": "0", "GIN_MODE": "release", "GIN_TEST_X": "1", "GIN_WIRE": ""})


def test_settings_of_the_simulator() -> None:
    config = config_from(
        Path("/"), {"platform": "sim", "seed": 7}, {"GIN_POLICY": "pct", "GIN_FAULTS": "dead", "GIN_MODEL": "none"}
    )
    assert (config.platform, config.seed, config.policy, config.faults, config.model) == ("sim", 7, "pct", "dead", None)
    with pytest.raises(ConfigError, match=r"policy.*random, pct"):
        config_from(Path("/"), {"policy": "lucky"})


def test_secrets_are_not_shown() -> None:
    config = config_from(Path("/"), environment={"GIN_JOB_SECRET": "hush-hush"})
    assert config.job_secret == "hush-hush"
    assert "hush" not in repr(config) + repr(config.describe()) + repr(config.agreement())
    with pytest.raises(ConfigError) as caught:
        config_from(Path("/"), {"job_secret": ["hush-hush"]})
    assert "hush" not in str(caught.value)


def test_other_tools_compiler() -> None:
    config = config_from(Path("/"), environment={"CXX": "clang++"})
    assert (config.cxx, config.origin("cxx")) == ("clang++", "CXX")
    config = config_from(Path("/"), environment={"CXX": "clang++", "GIN_CXX": "g++-12"})
    assert (config.cxx, config.origin("cxx")) == ("g++-12", "GIN_CXX")


def test_disagreement_names_knob_ranks_and_values() -> None:
    same = config_from(Path("/")).agreement()
    other = config_from(Path("/"), environment={"GIN_SIGNALS": "128"}).agreement()
    check_agreement([same, same, same])
    check_agreement([other, config_from(Path("/"), {"signals": 128}).agreement()])
    with pytest.raises(ConfigError, match=r"signals: ranks 0, 2: 64 \(default\); rank 1: 128 \(GIN_SIGNALS\)"):
        check_agreement([same, other, same])
    older = {name: entry for name, entry in same.items() if name != "heap"}
    with pytest.raises(ConfigError, match=r"heap: rank 0: .*; rank 1: no such knob"):
        check_agreement([same, older])


def test_ranks_in_words() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([2, 1]) == "ranks 1, 2"
    assert format_ranks([5, 0, 2, 3, 4]) == "ranks 0, 2-5"


def test_every_knob_is_documented() -> None:
    for knob in KNOBS.values():
        assert knob.doc
        assert knob.variable == "GIN_" + knob.name.upper()
