"""Task rows as the bytes of a Parquet file, and back: equal rows, and the same bytes for the same rows.

A field whose values all have one scalar type is a column of that type; any other field is a column of JSON text, and
the schema's metadata names those. In such a file an empty cell means that the row lacks the field. Files made elsewhere
(without that metadata) are read too: lists and structs as Python values, Parquet's JSON type parsed, an empty cell as
None. Not here: task ids, and what a row may hold. pyarrow is imported at the first use, not with the package.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.data import parquet_child
from agent_rl.data.bounds import Allowance
from agent_rl.data.json_rows import parse_json
from agent_rl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

_JSON_COLUMNS = b"agent_rl.json_columns"
"""Key of the schema's metadata: a JSON list of column names."""
_ROWS_AT_ONCE = 1024
_MAX_FOOTER_BYTES = 2**23
"""Of what a file says of itself, which takes some twenty times as much in memory; real ones have some kilobytes."""
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
_INT64 = range(-(2**63), 2**63)


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The rows as one Parquet file; they must hold JSON values only. Columns are in order of first appearance."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    scalar_types = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    json_columns, fields, columns = [], [], []
    for name in dict.fromkeys(key for row in rows for key in row):
        kind = _scalar_type([row[name] for row in rows if name in row])
        if kind is None:
            json_columns.append(name)
            column = [json.dumps(row[name], ensure_ascii=False) if name in row else None for row in rows]
        else:
            column = [row.get(name) for row in rows]
        fields.append(pa.field(name, scalar_types[kind or str]))
        columns.append(pa.array(column, type=fields[-1].type))
    schema = pa.schema(fields, metadata={_JSON_COLUMNS: json.dumps(json_columns)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _scalar_type(values: Sequence[Any]) -> type | None:
    """The one scalar type that all values have, or None: JSON text tells an int from a float, and holds any size."""
    kinds = {type(value) for value in values}
    if len(kinds) > 1 or not kinds <= {str, bool, int, float}:
        return None
    (kind,) = kinds
    return None if kind is int and any(value not in _INT64 for value in values) else kind


def decode_rows(content: bytes, source: str) -> list[Row]:
    """The rows of a Parquet file; `source` names it in errors.

    Raises DataError, one sentence, for bytes that are no whole Parquet file, a column whose values JSON does not have
    (dates, bytes, ...), a name that two columns share, and, with its row, a JSON text that does not parse. Numbers may
    still be infinite or none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    allowance = Allowance(source, len(content))
    rows: list[Row] = []
    _check_footer(content, source)
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        schema = file.schema_arrow
        json_columns, is_ours = _json_columns(schema, source)
        _check_claims(content, file.metadata.num_rows, allowance)
        # Texts that pages hold once stay so until their length is known.
        texts = [column.path for column in map(file.schema.column, range(len(file.schema))) if _is_text(column)]
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, read_dictionary=texts)
        # One thread: at exit, pyarrow's thread pools often abort the process when PyTorch was imported before.
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
            batch.validate(full=True)
            allowance.take(sum(map(_num_bytes, batch.columns)), 0)
            rows += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:  # damaged pages are an OSError; no file is open
        detail = " ".join(str(error).split()).rstrip(".")[:300]
        raise DataError(f"{source}: not a whole Parquet file ({detail}); write it again") from None
    return [
        {
            name: _parse(cell, f"{source}:row {number}: column {name!r:.100}", allowance)
            if name in json_columns and cell is not None
            else cell
            for name, cell in cells.items()
            if cell is not None or not is_ours
        }
        for number, cells in enumerate(rows, start=1)
    ]


def _json_columns(schema: "pa.Schema", source: str) -> tuple[set[str], bool]:
    """The columns that hold JSON text, and whether the file is one of `encode_rows`; DataError for a wrong schema."""
    import pyarrow as pa

    names = set()
    for field in schema:
        if field.name in names:
            raise DataError(f"{source}: two columns are called {field.name!r:.100}; rename or drop one")
        names.add(field.name)
        if not _is_plain(field.type):
            raise DataError(
                f"{source}: column {field.name!r:.100} has the type {field.type!s:.100}, which no task row can hold; "
                "write it as text, a number, a boolean, a list or a struct"
            )
    listed = (schema.metadata or {}).get(_JSON_COLUMNS)
    try:
        of_json = json.loads(listed or "[]")
    except (ValueError, RecursionError):
        of_json = None
    if not isinstance(of_json, list) or not all(isinstance(name, str) for name in of_json):
        raise DataError(f"{source}: its metadata {_JSON_COLUMNS.decode()} is no list of columns; write the file again")
    return {field.name for field in schema if isinstance(field.type, pa.JsonType)} | set(of_json), listed is not None


def _check_footer(content: bytes, source: str) -> None:
    """A file ends in its description, the length of that in four bytes, and a mark."""
    num_bytes = int.from_bytes(content[-8:-4], "little")
    if content.endswith(b"PAR1") and _MAX_FOOTER_BYTES < num_bytes < len(content):
        raise DataError(
            f"{source}: its description of itself has {num_bytes} bytes, expected {_MAX_FOOTER_BYTES} at most; write "
            "it with less metadata and larger row groups"
        )


def _check_claims(content: bytes, num_rows: int, allowance: Allowance) -> None:
    """Take what the file says of itself from the allowance, before any page is unpacked.

    ValueError where that contradicts itself.
    """
    num_bytes = int.from_bytes(content[-8:-4], "little")
    done = subprocess.run(
        [sys.executable, "-P", str(Path(parquet_child.__file__))],
        input=content[:4] + content[-8 - num_bytes :],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        cwd="/",
        check=False,
    )
    if done.returncode:
        raise ValueError("what it says of its columns contradicts itself, or takes too long to be read")
    num_values, largest = map(int, done.stdout.split())
    allowance.take(0, num_values + max(num_rows, 0))
    Allowance.take(copy.copy(allowance), largest, 0)


def _is_text(column: Any) -> bool:
    return column.physical_type == "BYTE_ARRAY"


def _num_bytes(array: "pa.Array") -> int:
    """Bytes of the values when each is written out: a dictionary's texts as often as they are used."""
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
        return array.indices.nbytes + (pc.sum(lengths).as_py() or 0)
    if types.is_struct(kind):
        return sum(map(_num_bytes, array.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _num_bytes(array.flatten())
    return array.nbytes


def _is_plain(kind: "pa.DataType") -> bool:
    """Whether values of the type come back as str, int, float, bool, None, and lists and dictionaries of those."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    is_text = types.is_string(kind) or types.is_large_string(kind) or isinstance(kind, pa.JsonType)
    is_number = types.is_integer(kind) or types.is_floating(kind)
    return is_text or is_number or types.is_boolean(kind) or types.is_null(kind)


def _parse(text: Any, where: str, allowance: Allowance) -> Any:
    if not isinstance(text, str):
        raise DataError(f"{where} holds {text!r:.100} where JSON text is expected; write the file again")
    allowance.take_json(text)
    try:
        return parse_json(text, where)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where} is not valid JSON ({error.msg}, character {error.pos + 1}); correct the text"
        ) from None
