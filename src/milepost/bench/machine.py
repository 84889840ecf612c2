"""What the numbers of a benchmark depend on, and nothing that names the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("milepost", "xllamacpp", "cffi", "fastapi", "msgspec", "numpy", "uvicorn", "uvloop")
CPU_INFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory and system."""
    return {
        "cpu": next(iter(_read_cpu_fields("model name")), platform.processor()),
        "physical_cores": count_physical_cores(),
        "logical_cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def count_physical_cores() -> int:
    """Return the number of cores, or of logical ones where no more is known."""
    places = zip(_read_cpu_fields("physical id"), _read_cpu_fields("core id"), strict=False)
    return len(set(places)) or os.cpu_count() or 1


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of what the servers are made of."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


def find_commit() -> str:
    """Return the commit of the checkout that this runs from, "" where it is none.

    A plus sign at the end tells that the sources have changed since.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    return f"{commit}+" if _git("status", "--porcelain", "--", ".") else commit


def _read_cpu_fields(name: str) -> list[str]:
    if not CPU_INFO.exists():
        return []
    lines = CPU_INFO.read_text("utf-8").splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def _git(*arguments: str) -> str:
    folder = Path(__file__).parents[1]  # the package alone: results and notes may change
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
