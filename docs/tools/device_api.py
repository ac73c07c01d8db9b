"""The reference of the device API, from the comments of its headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prose import markdown

__all__ = ["context_reference", "type_reference"]

_SECTION = re.compile(r"^  // -- (.+?) -{2,}$")
_NAME = re.compile(r"(\w+)\(")


@dataclass
class _Group:
    """Declarations that one comment speaks of."""

    comment: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def context_reference(header: Path) -> str:
    """The operations of gin::Context, by section. Raises ValueError for a public declaration without a comment."""
    lines = header.read_text(encoding="utf-8").splitlines()
    begin = lines.index("class Context {")
    end = lines.index(" private:", begin)
    out: list[str] = []
    for line_group in _groups(lines[begin + 2 : end]):
        if isinstance(line_group, str):
            out += [f"## {line_group[0].upper()}{line_group[1:]}", ""]
            continue
        code = _tidy(line_group.code)
        names = list(dict.fromkeys(_names(code)))
        text = markdown("\n".join(line_group.comment))
        if names:
            out += [f"### {', '.join(f'`{name}`' for name in names)}", "", "```cpp", code, "```", ""]
        out += [text, ""]
    return "\n".join(out)


def _groups(lines: list[str]) -> Iterator[str | _Group]:
    group = _Group()
    for line in [*lines, ""]:
        section = _SECTION.match(line)
        if section or not line.strip():
            if group.comment or group.code:
                yield group
            group = _Group()
            if section:
                yield section[1]
        elif line.startswith("  //") and not group.code:
            group.comment.append(line[5:] if line.startswith("  // ") else "")
        else:
            group.code.append(line[2:])


def _tidy(lines: list[str]) -> str:
    """Declarations as a caller sees them: without bodies and macros, a blank-free line each."""
    text = re.sub(r"\s+", " ", "\n".join(lines))
    text = text.replace("GIN_DEVICE ", "").replace(" GIN_SITE", "")
    text = re.sub(r"\)( const)? ?(?::[^{;]*)?\{[^}]*\}", r")\1;", text)
    declarations = [part.strip() + ";" for part in text.split(";") if part.strip()]
    return "\n".join(_wrap(declaration) for declaration in declarations)


def _wrap(declaration: str) -> str:
    declaration = re.sub(r"^(template <.*?>) (?!\w+ =)(?=\w)", r"\1\n", declaration)
    head, _, last = declaration.rpartition("\n")
    if len(last) > 100:
        open_at = last.index("(") + 1
        indent, width, lines, line = "    ", 96, [], last[:open_at]
        for word in last[open_at:].replace(", ", ",\n").split("\n"):
            if len(line) + 1 + len(word) > width:
                lines.append(line.rstrip())
                line = indent
            line += word if line.endswith(("(", "    ")) else f" {word}"
        last = "\n".join([*lines, line])
    return f"{head}\n{last}" if head else last


def _names(code: str) -> Iterator[str]:
    for declaration in code.split(";"):
        found = _NAME.search(declaration)
        if found:
            yield found[1]


def type_reference(header: Path, names: list[str]) -> str:
    """Structures and functions of a header: the comment in front of each, and its text.

    Raises ValueError for one that is not there.
    """
    lines = header.read_text(encoding="utf-8").splitlines()
    out = []
    for name in names:
        declared = re.compile(rf"(?:struct|enum class|GIN_DEVICE [\w<>]+) {name}\b[^;]*$")
        first = next((at for at, line in enumerate(lines) if declared.match(line)), None)
        if first is None:
            raise ValueError(f"{header}: {name} is not declared")
        last = next(at for at in range(first, len(lines)) if lines[at].startswith("}"))
        while lines[first - 1].startswith("template"):
            first -= 1
        start = first
        while start and lines[start - 1].startswith("//"):
            start -= 1
        comment = "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines[start:first])
        code = "\n".join(_declared(lines[first : last + 1]))
        out += [f"### `{name}`", "", markdown(comment), "", "```cpp", code, "```", ""]
    return "\n".join(out)


def _declared(lines: list[str]) -> Iterator[str]:
    """Lines of a structure without the bodies of its functions."""
    depth = 0
    for line in lines:
        opened, closed = line.count("{"), line.count("}")
        if depth < 2:
            text = re.sub(r"\)( const)? ?\{.*", r")\1;", line) if depth or line.startswith("GIN_DEVICE") else line
            yield re.sub(r"\b(?:GIN_DEVICE|GIN_HD|constexpr) ", "", text)
        depth += opened - closed
        if not lines[0].startswith(("struct", "enum")) and depth:
            return
