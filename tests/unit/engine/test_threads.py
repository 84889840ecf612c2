"""Hardware threads of one core count once."""

from __future__ import annotations

from pathlib import Path

from milepost.engine.threads import count_physical_cores, usable_cpus


def write_siblings(folder: Path, siblings: dict[int, str]) -> None:
    for cpu, text in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    write_siblings(tmp_path, dict.fromkeys(usable_cpus(), "0-1"))
    assert count_physical_cores(tmp_path) == 1


def test_cores_of_one_thread_count_each(tmp_path: Path) -> None:
    write_siblings(tmp_path, {cpu: str(cpu) for cpu in usable_cpus()})
    assert count_physical_cores(tmp_path) == len(usable_cpus())


def test_a_system_that_does_not_tell_counts_every_cpu(tmp_path: Path) -> None:
    assert count_physical_cores(tmp_path) == len(usable_cpus())


def test_a_cpu_without_topology_makes_all_count(tmp_path: Path) -> None:
    write_siblings(tmp_path, dict.fromkeys(usable_cpus()[1:], "0-1"))
    assert count_physical_cores(tmp_path) == len(usable_cpus())
