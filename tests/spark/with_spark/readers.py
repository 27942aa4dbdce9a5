"""Those who read the jobs' tables, each in its own way: rows as tuples, in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rows = list[tuple[Any, ...]]
Read = Callable[[str, Sequence[str]], Rows]


def by_delta_rs(place: str, columns: Sequence[str]) -> Rows:
    """The library that Sluice's own demo reads with, and its engine."""
    import pyarrow as pa  # noqa: PLC0415  may be missing here
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415  as above

    query = f"SELECT {', '.join(columns)} FROM found"
    found = pa.table(QueryBuilder().register("found", DeltaTable(place)).execute(query).read_all())
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True), key=str)


def by_polars(place: str, columns: Sequence[str]) -> Rows:
    import polars as pl  # noqa: PLC0415  may be missing here

    return sorted(pl.scan_delta(place).select(columns).collect().rows(), key=str)


def by_duckdb(place: str, columns: Sequence[str]) -> Rows:
    import duckdb  # noqa: PLC0415  may be missing here
    from deltalake import DeltaTable  # noqa: PLC0415  as above

    with duckdb.connect() as connection:
        connection.register("found", DeltaTable(place).to_pyarrow_dataset())
        return sorted(connection.sql(f"SELECT {', '.join(columns)} FROM found").fetchall(), key=str)


def by_pandas(place: str, columns: Sequence[str]) -> Rows:
    from deltalake import DeltaTable  # noqa: PLC0415  may be missing here

    found = DeltaTable(place).to_pandas(columns=list(columns)).astype(object)
    return sorted(found.where(found.notna(), None).itertuples(index=False, name=None), key=str)


BESIDE_SPARK: Mapping[str, Read] = {
    "delta-rs": by_delta_rs,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "pandas": by_pandas,
}


def by_spark(spark: Any, table: Any, columns: Sequence[str]) -> Rows:
    return sorted((tuple(row) for row in table.read(spark).select(*columns).collect()), key=str)
