"""The program that reads what a Parquet file says of its columns: such a description in, two numbers out.

`parquet.py` starts it; it imports nothing of this package. pyarrow ends its process for descriptions that contradict
themselves, where Python sees no exception. Not here: pages, which are read in the process that wants the rows.
"""

import resource
import sys

MAX_CPU_S = 30
MAX_MEMORY_BYTES = 2**32


def main() -> None:
    """The sum of the columns' numbers of values, and the size of the largest column when unpacked."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(pa.BufferReader(sys.stdin.buffer.read())).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    num_values = sum(max(column.num_values, 0) for column in columns)
    print(num_values, max((column.total_uncompressed_size for column in columns), default=0))


if __name__ == "__main__":
    main()
