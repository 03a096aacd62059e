"""Type aliases for numpy arrays, so that all modules use the same names."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]  # times, offsets, sizes, ids: the 64-bit fields of a record
Ints32 = npt.NDArray[np.int32]
Ints8 = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]  # a mask over rows
Indices = npt.NDArray[np.intp]  # positions in another array, as numpy's sorts and searches return them
Octets = npt.NDArray[np.uint8]
UInts16 = npt.NDArray[np.uint16]
UInts32 = npt.NDArray[np.uint32]
UInts64 = npt.NDArray[np.uint64]
Texts = npt.NDArray[np.bytes_]  # byte strings of fixed width
Structs = npt.NDArray[np.void]  # rows of a structured dtype
AnyArray = npt.NDArray[Any]
