"""Every command says what it does, with examples."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gin.cli import info
from gin.cli.main import _COMMANDS, _group


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_has_examples(name: str) -> None:
    result = CliRunner().invoke(_group, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Examples:" in result.output
    assert f"gin {name}" in result.output
    assert "--help" in result.output


def test_all_commands_are_listed_in_order() -> None:
    result = CliRunner().invoke(_group, ["--help"])
    for name, about in _COMMANDS.items():
        assert f"  {name} " in result.output
        assert about.split()[0] in result.output


def test_ctrl_c_outside_of_a_sweep_is_told_like_within(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(info.command, "callback", interrupted)
    done = CliRunner().invoke(_group, ["info"])
    assert done.exit_code == 130
    assert done.output == "gin: interrupted\n"
