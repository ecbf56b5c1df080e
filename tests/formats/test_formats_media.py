"""Text, images and binary files, which a class of the user converts to episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_mappers import Words
from PIL import Image

from episode_kit import read_block
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.format import ReadOptions
from hindcast.formats.media import ray_data
from hindcast.formats.registry import FORMATS
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
from hindcast.run.interruption import Interruption
from hindcast.run.training.training_run import TrainingRun
from hindcast.storage.location import resolve
from support import MemoryReporter, training

LINES = ["the cat sat", "a dog ran far", "the dog sat"]
VOCABULARY = {token: id_ for id_, token in enumerate(sorted({*" ".join(LINES).split(" ")}), start=1)}


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "one.txt").write_text("\n".join(LINES[:2]) + "\n")
    (folder / "two.txt").write_text(LINES[2])
    return folder


def save_frames(folder: Path, count: int, size: tuple[int, int] = (6, 4)) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(np.full((*size, 3), 7 * number, dtype=np.uint8)).save(folder / f"frame{number}.png")


def read_files(
    folder: Path, form: str, mapper: str, kwargs: dict[str, Any] | None = None, **options: Any
) -> Block:
    read_options = ReadOptions(mapper=f"media_mappers:{mapper}", mapper_kwargs=kwargs or {}, options=options)
    dataset = open_data(Reading((str(folder),), form, read_options))
    return read_block(dataset)


def test_rllib_text_pre_learner_makes_episodes(sentences: Path) -> None:
    block = read_files(sentences, "Text", "Words", {"vocabulary": VOCABULARY})
    assert sorted(block.length.tolist()) == [2, 2, 3]
    assert block.terminated.all()
    actions = {tuple(block.columns["actions"][block.rows_of("actions", i)]) for i in range(3)}
    assert actions == {tuple(VOCABULARY[token] for token in line.split(" ")[1:]) for line in LINES}
    assert block.columns["obs"].sum(axis=1).tolist() == [1.0] * (7 + 3)


def test_pre_learner_is_callable_as_in_rllib_docs() -> None:
    episodes = Words._map_to_episodes(
        is_multi_agent=False, batch={"text": LINES}, to_numpy=True, vocabulary=VOCABULARY
    )["episodes"]
    assert [len(episode) for episode in episodes] == [2, 3, 2]


def test_training_reads_text(tmp_path: Path, sentences: Path) -> None:
    num_words = len(VOCABULARY)
    resource = training(
        tmp_path / "run",
        sentences,
        input=[{"path": str(sentences), "format": "Text"}],
        pipeline={"preLearner": "media_mappers:Words", "preLearnerKwargs": {"vocabulary": VOCABULARY}},
        observationSpace={"type": "Box", "low": 0, "high": 1, "shape": [num_words], "dtype": "float32"},
        actionSpace={"type": "Discrete", "n": num_words, "start": 1},
    )
    reporter = MemoryReporter()
    inputs = open_inputs(resource, resolve_inputs(resource, FileReferences({})), reporter)
    training_run = TrainingRun(resource, make_sources(inputs), reporter, Interruption())
    assert training_run.execute().state == "Succeeded"
    assert any("Text" in note for note in reporter.notes)


def test_folder_of_images_is_mapped_together(tmp_path: Path) -> None:
    save_frames(tmp_path / "images" / "a", 12)
    save_frames(tmp_path / "images" / "b", 3)
    block = read_files(tmp_path / "images", "Images", "Frames", {"name": "walk"})
    assert sorted(block.length.tolist()) == [2, 11]
    longest = int(np.argmax(block.length))
    frames = block.columns["obs"][block.rows_of("obs", longest)]
    assert frames.shape == (12, 6, 4, 3)
    assert frames[:, 0, 0, 0].tolist() == [7 * number for number in range(12)]
    assert str(block.eps_id[longest]).startswith("walk ")


def test_images_are_resized_and_batched(tmp_path: Path) -> None:
    save_frames(tmp_path / "images", 4)
    block = read_files(tmp_path / "images", "Images", "Frames", size=[3, 5], mode="L", batch_size=2)
    assert block.columns["obs"].shape == (4, 3, 5)
    assert block.num_episodes == 2


def test_images_of_several_sizes_reach_mapper_as_objects(tmp_path: Path) -> None:
    save_frames(tmp_path / "images", 2)
    Image.fromarray(np.zeros((3, 3), dtype=np.uint8)).save(tmp_path / "images" / "small.png")
    with pytest.raises(UserCodeError, match=r"Frames.map_rows, given .*images, raised ValueError.*shape"):
        read_files(tmp_path / "images", "Images", "Frames")


def test_binary_files_are_read_as_bytes(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
        (tmp_path / "data" / str(number) / "log.bin").write_bytes(bytes(range(number + 2)))
    block = read_files(tmp_path / "data", "Binary", "Bytes")
    assert sorted(block.length.tolist()) == [1, 2, 3]
    assert block.columns["obs"].dtype == np.uint8


def test_text_options_set_encoding_and_drop_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("été là\n\nlà été\n".encode("latin-1"))
    vocabulary = {"vocabulary": {"été": 1, "là": 2}}
    with pytest.raises(DataError, match=r"a\.txt is not utf-8 text \(at byte 0\).*readOptions\.encoding"):
        read_files(tmp_path / "a.txt", "Text", "Words", vocabulary)
    options = {"encoding": "latin-1", "drop_empty_lines": True}
    block = read_files(tmp_path / "a.txt", "Text", "Words", vocabulary, **options)
    assert block.length.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("mapper", "error", "message"),
    [
        ("NoRowMapper", SpecError, "NoRowMapper does not override map_rows"),
        ("ArrayMapper", UserCodeError, "returned an ndarray; it must return a Block or a list"),
        (
            "Words",
            UserCodeError,
            r"Words\._map_to_episodes, given .*txt, raised ValueError at .*mappers\.py.*no voc",
        ),
        ("NoPreLearner", SpecError, "has no map_rows"),
        ("Missing", SpecError, "has no 'Missing'"),
    ],
)
def test_invalid_mapper_raises(sentences: Path, mapper: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_files(sentences, "Text", mapper)


def test_text_without_mapper_raises(sentences: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.pipeline\.preLearner"):
        open_data(Reading((str(sentences),), "Text"))


def test_damaged_image_raises_with_its_name(tmp_path: Path) -> None:
    save_frames(tmp_path / "images", 2)
    path = tmp_path / "images" / "frame1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"frame1\.png cannot be read as an image"):
        read_files(tmp_path / "images", "Images", "Frames")


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("Text", {"encoding": "klingon"}, "not a known encoding"),
        ("Text", {"drop_empty_lines": 1}, "expected true or false"),
        ("Images", {"size": [3]}, r"expected \[height, width\]"),
        ("Images", {"mode": "blue"}, "allowed are"),
        ("Images", {"batch_size": 0}, "at least 1"),
        ("Binary", {"size": 1}, "has 'size', which Binary does not have"),
    ],
)
def test_invalid_option_raises(tmp_path: Path, form: str, options: dict[str, Any], message: str) -> None:
    save_frames(tmp_path / "images", 2)
    read_options = ReadOptions(mapper="media_mappers:Frames", options=options)
    with pytest.raises(DataError, match=message):
        FORMATS[form].list_pieces(resolve(tmp_path / "images"), read_options)


def test_columns_of_joined_batches_keep_the_order_of_the_first() -> None:
    names = ["eps_id", *(f"column{index}" for index in range(8))]
    batches = [{name: np.array(["a"], object) for name in order} for order in (names, sorted(names))]
    (batch,) = ray_data._join_episodes(batches, "eps_id")
    assert list(batch) == names
