"""Cores by affinity and by a container's quota, from files as the kernel writes them."""

import os

import pytest

from server.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def group(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "ascii")
    return folder


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, 8),
        ({"cpu.max": "nonsense\n"}, 8),
        ({"cpu.max": "0 0\n"}, 8),
    ],
)
def test_a_quota_bounds_the_cores(tmp_path, files, cores):
    assert usable_cores(group(tmp_path, files)) == cores


def test_affinity_bounds_them_too(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(group(tmp_path, {"cpu.max": "400000 100000\n"})) == 1
