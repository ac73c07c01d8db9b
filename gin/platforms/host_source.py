"""From a kernel's CUDA C++ source to the translation unit that the system's C++ compiler gets on the host platform."""

from __future__ import annotations

import platform
import re

# What the language shims and the executor rely on, of g++ and clang++. Whether and how far to optimise is up to the
# caller.
_COMMON = (
    "-std=c++17",
    "-x",
    "c++",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    # Device code reads memory as whatever it likes.
    "-fno-strict-aliasing",
    # A frame larger than a page must still meet the guard page.
    "-fstack-clash-protection",
    "-fno-exceptions",
    # Of a source with several kernels, the __shared__ variables of the others are no part of a block's.
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-include",
    "gin_host.h",
)
# __shared__ is thread_local, redirected by the module's own __tls_get_addr: the compiler must call it, each module must
# have its own variables, and extern ones must not look for an initialiser. clang++ does all that on x86-64 by itself.
_GCC = (
    f"-mtls-dialect={'trad' if platform.machine() == 'aarch64' else 'gnu'}",
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
)
FLAGS: tuple[str, ...] = (*_COMMON, *_GCC)


def compiler_flags(version: str) -> tuple[str, ...]:
    """The flags for the compiler that describes itself with this text (the first line of `--version`)."""
    return _COMMON if "clang" in version else FLAGS


# What compiler messages call the user's source, and the lines that gin adds after it.
SOURCE_NAME = "kernel.cu"
ENTRY_NAME = "gin-entry"

_TOKEN = re.compile(
    r"""
      (?P<skip> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n\\]|\\.)*        # comments, preprocessor lines
        | R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"        # raw strings
        | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )                   # strings, characters
    | (?P<namespace> \b(?:inline\s+)?namespace\s+(?P<name>(?:[A-Za-z_]\w*\s*::\s*(?:inline\s+)?)*[A-Za-z_]\w*)?\s*\{ )
    | (?P<linkage> \bextern\s*"C"\s*\{ )
    | (?P<shared> \bextern\b(?=[^;{}]*\b__shared__\b)[^;{}]*?(?P<variable>[A-Za-z_]\w*)\s*\[\s*\]\s*; )
    | (?P<open> \{ )
    | (?P<close> \} )
    | (?P<number> \b\d[\w']* )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

_ANONYMOUS = "_GLOBAL__N_1"


def dynamic_shared_symbols(source: str) -> list[str]:
    """The assembler names of the `extern __shared__ T name[]` variables that a source declares, in order.

    A declaration belongs to the namespace around it, also inside a function; in an `extern "C"` function of a namespace
    it has its plain name, so both are given.
    """
    found: dict[str, None] = {}
    scopes: list[list[str]] = []  # the namespaces that each open brace adds
    for token in _TOKEN.finditer(source):
        if token["namespace"]:
            name = re.sub(r"\binline\b|\s", "", token["name"] or _ANONYMOUS)
            scopes.append(name.split("::"))
        elif token["linkage"] or token["open"]:
            scopes.append([])
        elif token["close"]:
            if scopes:
                scopes.pop()
        elif token["shared"]:
            variable = token["variable"]
            path = [name for scope in scopes for name in scope]
            found[variable] = None
            if path:
                mangled = "".join(f"{len(name)}{name}" for name in [*path, variable])
                found[f"_ZN{mangled}E"] = None
    return list(found)


def prepare(source: str, entry: str) -> str:
    """The whole translation unit for a kernel's source.

    source: CUDA C++ that defines the kernel; compiler messages give its own lines, in a file called `kernel.cu`.
    entry: the kernel's name, with template arguments if it has any (`scale<float>`).

    Dynamic shared memory: every `extern __shared__ T name[];` written in `source` itself becomes another name of the
    one array that a launch gives room to, whatever its type and scope. Declarations in included files, or made by
    macros, are not seen and end in an undefined symbol. The compiler takes two names for two arrays: what is written
    through one and read through another needs a barrier in between.
    """
    end = "" if source.endswith("\n") else "\n"
    parts = [f'#line 1 "{SOURCE_NAME}"\n{source}{end}#line 1 "{ENTRY_NAME}"\n']
    for symbol in dynamic_shared_symbols(source):
        parts.append(f"GIN_HOST_DYNAMIC_SHARED({symbol})\n")
    parts.append(f"GIN_HOST_ENTRY({entry})\n")
    return "".join(parts)
