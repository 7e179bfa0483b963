"""Task rows as the bytes of a Parquet file, and back: equal rows, and the same bytes for the same rows.

A field whose values all have one scalar type is a column of that type; any other field is a column of JSON text, and
the schema's metadata names those. In such a file an empty cell means that the row lacks the field. Files made elsewhere
(without that metadata) are read too: lists and structs as Python values, Parquet's JSON type parsed, an empty cell as
None. Not here: task ids, and what a row may hold. pyarrow is imported at the first use, not with the package.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_rl.data.json_rows import parse_json
from agent_rl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

_JSON_COLUMNS = b"agent_rl.json_columns"
"""Key of the schema's metadata: a JSON list of column names."""
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
    (dates, bytes, ...), a name that two columns share, and, with its row, a JSON text that does not parse.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # One thread: at exit, pyarrow's thread pools often abort the process when PyTorch was imported before.
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read(use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:  # pyarrow reports damaged pages as OSError; no file is open here
        detail = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"{source}: not a whole Parquet file ({detail}); write it again") from None
    for number, field in enumerate(table.schema):
        if field.name in table.column_names[:number]:
            raise DataError(f"{source}: two columns are called {field.name!r}; rename or drop one")
        if not _is_plain(field.type):
            raise DataError(
                f"{source}: column {field.name!r} has the type {field.type}, which no task row can hold; "
                "write it as text, a number, a boolean, a list or a struct"
            )
    listed = (table.schema.metadata or {}).get(_JSON_COLUMNS)
    json_columns = {field.name for field in table.schema if isinstance(field.type, pa.JsonType)}
    json_columns |= set(json.loads(listed or "[]"))
    return [
        {
            name: _parse(cell, f"{source}:row {number}: column {name!r}")
            if name in json_columns and cell is not None
            else cell
            for name, cell in cells.items()
            if cell is not None or listed is None
        }
        for number, cells in enumerate(table.to_pylist(), start=1)
    ]


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


def _parse(text: Any, where: str) -> Any:
    if not isinstance(text, str):
        raise DataError(f"{where} holds {text!r} where JSON text is expected; write the file again")
    try:
        return parse_json(text, where)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where} is not valid JSON ({error.msg}, character {error.pos + 1}); correct the text"
        ) from None
