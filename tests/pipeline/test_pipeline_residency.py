import os

import torch

from hindcast import memory
from hindcast.pipeline import residency


def test_host_memory_respects_the_container_limit(tmp_path, monkeypatch):
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine_bytes, container_bytes = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    machine_bytes.write_text("max\n")
    container_bytes.write_text("1048576\n")
    monkeypatch.setattr(memory, "_LIMIT_FILES", (str(tmp_path / "none"), str(machine_bytes)))
    assert residency.host_memory() == machine
    monkeypatch.setattr(memory, "_LIMIT_FILES", (str(machine_bytes), str(container_bytes)))
    assert residency.host_memory() == 1 << 20
    assert residency.default_budget(torch.device("cpu")) == 1 << 18
