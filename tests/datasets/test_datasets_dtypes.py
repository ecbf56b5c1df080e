"""Data whose parts store a number in other dtypes are read exactly, or refused, at every seam of files and datasets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from episode_kit import read_block, replace_columns
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.lossless import find_rounded_row

DTYPES = ("int8", "uint16", "int32", "int64", "uint64", "float32", "float64")


def write_rewards(kit, folder, layout, dtype, first):
    """Write two episodes, the second with the largest number of the dtype as a reward; return the block."""
    block = kit.block([2, 3], first=first)
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    rewards = np.array([0, 1, 2, 3, limits.max], dtype)
    block = replace_columns(block, rewards=rewards)
    kit.write(folder, block, stem=f"{first:06d}", layout=layout)
    return block


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seam", ["files", "inputs", "merge"])
def test_numbers_of_two_dtypes_are_read_exactly_or_refused(kit, tmp_path, layout, seam):
    for first_dtype, second_dtype in itertools.combinations(DTYPES, 2):
        folders = [tmp_path / f"{first_dtype}-{second_dtype}" / name for name in ("one", "other")]
        if seam == "files":
            folders[1] = folders[0]
        blocks = [
            write_rewards(kit, folder, layout, dtype, 2 * i)
            for i, (folder, dtype) in enumerate(zip(folders, (first_dtype, second_dtype), strict=True))
        ]
        dtype = np.result_type(first_dtype, second_dtype)

        def read(folders=folders):
            if seam == "merge":
                return read_block(merge([open_dataset(folder) for folder in folders]))
            return read_block(open_dataset(list(dict.fromkeys(folders))))

        columns = [block.columns["rewards"] for block in blocks]
        if second_dtype == "uint64" and first_dtype.startswith("int"):
            with pytest.raises(DataError, match=r"'rewards' is u?int.* no dtype holds both"):
                read()
            continue
        rounded = [i for i, column in enumerate(columns) if find_rounded_row(column, dtype) is not None]
        if rounded:
            with pytest.raises(
                DataError, match=f"episode e{2 * rounded[0] + 1}, step 2: 'rewards' is .*round"
            ):
                read()
        else:
            rewards = read().columns["rewards"]
            assert rewards.dtype == dtype
            assert rewards.tolist() == [number for column in columns for number in column.tolist()]
