import os

import torch

from hindcast import memory
from hindcast.pipeline import residency


def test_host_memory_and_budget_respect_the_container_limit(tmp_path, monkeypatch):
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unlimited_file, limited_file = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    unlimited_file.write_text("max\n")
    limited_file.write_text("1048576\n")
    monkeypatch.setattr(memory, "_LIMIT_FILES", (str(tmp_path / "none"), str(unlimited_file)))
    assert residency.host_memory() == machine_bytes
    monkeypatch.setattr(memory, "_LIMIT_FILES", (str(unlimited_file), str(limited_file)))
    assert residency.host_memory() == 1 << 20
    assert residency.default_budget(torch.device("cpu")) == 1 << 18
    assert residency.default_budget(torch.device("cpu"), num_learners_here=4) == 1 << 16
