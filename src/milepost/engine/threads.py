"""How many threads to compute with when the user does not say."""

from __future__ import annotations

import os
from pathlib import Path

CPU_FOLDER = Path("/sys/devices/system/cpu")


def count_physical_cores(cpu_folder: Path = CPU_FOLDER) -> int:
    """Return the number of physical cores that this process may use.

    Two hardware threads of one core share its vector units and slow each other down. Where the
    system does not tell which ones belong together, every usable CPU counts.
    """
    cpus = usable_cpus()
    cores = set()
    for cpu in cpus:
        siblings = cpu_folder / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(cpus)
    return max(len(cores), 1)


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
