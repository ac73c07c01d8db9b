"""Telling hosts apart."""

from __future__ import annotations

import socket

__all__ = ["host_identity"]


def host_identity() -> str:
    """A name that ranks of one host share and others do not: host names alone are not unique, boots alone are shared by
    containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return socket.gethostname()
