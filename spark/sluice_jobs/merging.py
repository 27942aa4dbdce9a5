"""What compaction merges, and how Delta and Iceberg are told to. Pure."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from sluice_jobs.landing_names import MESSAGES
from sluice_jobs.table_log import DataFile

SMALL = 0.75  # of the target: a file that is larger stays


def closed_days(today: date, count: int) -> Sequence[date]:
    """List the `count` days before today."""
    return [today - timedelta(days=back) for back in range(1, count + 1)]


def merges(files: Sequence[DataFile], days: Sequence[date], target_bytes: int) -> Iterator[Sequence[DataFile]]:
    """Which files become one: of one partition, small, together no larger than the target. By partition, then path."""
    wanted = {day.isoformat() for day in days}
    partitions: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.partition["date"] in wanted and file.size < SMALL * target_bytes:
            partitions.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for key in sorted(partitions):
        for group in _filled(partitions[key], target_bytes):
            if len(group) > 1:
                yield group


def optimize_statement(location: str, days: Sequence[date]) -> str:
    """Delta's. The target size is a setting of the session."""
    return f"OPTIMIZE delta.`{location}/{MESSAGES}` WHERE {_between(days)}"


def rewrite_statement(namespace: str, days: Sequence[date], target_bytes: int) -> str:
    """Iceberg's."""
    catalog, _, rest = namespace.partition(".")
    where = _between(days).replace("'", "''")
    return (
        f"CALL {catalog}.system.rewrite_data_files(table => '{rest}.{MESSAGES}', where => '{where}', "
        f"options => map('target-file-size-bytes', '{target_bytes}', 'partial-progress.enabled', 'true'))"
    )


def _between(days: Sequence[date]) -> str:
    return f"date >= DATE '{min(days).isoformat()}' AND date <= DATE '{max(days).isoformat()}'"


def _filled(files: Sequence[DataFile], target_bytes: int) -> Iterator[Sequence[DataFile]]:
    """In order, each group until the next file would exceed the target."""
    group: list[DataFile] = []
    for file in files:
        if group and sum(each.size for each in group) + file.size > target_bytes:
            yield group
            group = []
        group.append(file)
    if group:
        yield group
