"""Arrays in safetensors files: reading executes nothing, and writing copies nothing."""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from parallel_ppo.printable import one_line
from parallel_ppo.storage.files import Damaged, Pieces, open_regular

MAX_FILE, MAX_HEADER = 1 << 40, 1 << 24

# The names of types in the format, in the order of the library's layout, which keeps arrays aligned.
TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def bytes_of(array: np.ndarray) -> memoryview:
    """A view of the bytes; a copy if they are not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pieces_of(arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Pieces:
    """The file of `safetensors.save`, as a header and views of the arrays, because memory for a copy may be
    missing.
    """
    order = list(TYPES)
    names = sorted(arrays, key=lambda name: (order.index(arrays[name].dtype.name), name))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        shape = list(arrays[name].shape)
        header[name] = {"dtype": TYPES[arrays[name].dtype.name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    return [memoryview(length + text), *(bytes_of(arrays[name]) for name in names)]


def parse_arrays(data: bytes, what: str) -> dict[str, np.ndarray]:
    try:
        return safetensors.load(data)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        MemoryError,
    ) as error:
        raise Damaged(f"{what} is not a safetensors file ({one_line(error)})") from None


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in a file's header, without reading its arrays. Raises Damaged if there is none."""
    with open_regular(path, MAX_FILE) as file:
        return metadata_of(file.read(8) + file.read(MAX_HEADER), str(path))


def metadata_of(data: bytes, what: str) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    try:
        if not 8 + length <= len(data):
            raise ValueError("header is cut off")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        return {str(key): str(value) for key, value in metadata.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{what}: its header cannot be read ({type(error).__name__})") from None
