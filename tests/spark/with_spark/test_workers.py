from __future__ import annotations  # the classes below travel without what their annotations name

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="from 3.13 on zipimport reads an archive anew only when asked")
def test_a_worker_reads_pysparks_archive_no_more_after_its_first_task(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path
) -> None:
    """Seen from inside a task: Spark has the archive on the path, and what a worker's earlier task did still holds."""
    from pyspark.sql.datasource import DataSourceReader  # noqa: PLC0415  may be missing here
    from sluice_spark.data_source import SqsDataSource  # noqa: PLC0415  may be missing here
    from sluice_spark.options import parse_options  # noqa: PLC0415  as above
    from sluice_spark.source.readers import SqsReader  # noqa: PLC0415  as above

    class Looking(SqsDataSource):  # defined here, so that it travels by value: workers can't import a test
        @classmethod
        def name(cls) -> str:
            return "sqs_looking"

        def schema(self) -> str:
            super().schema()
            return "worker int, spared boolean, zipped boolean"

        def reader(self, schema: Any) -> Any:
            inner = SqsReader(parse_options(self.options))  # the source itself refuses any other schema than its own

            class Reader(DataSourceReader):
                def partitions(self) -> Any:
                    return inner.partitions()

                def read(self, partition: Any) -> Any:
                    import os  # noqa: PLC0415  travels with the method
                    import sys  # noqa: PLC0415  travels with the method
                    import zipimport  # noqa: PLC0415  travels with the method

                    before = zipimport.zipimporter.invalidate_caches.__module__
                    rows = sum(batch.num_rows for batch in inner.read(partition))
                    assert rows
                    zipped = any(path.endswith("pyspark.zip") for path in sys.path)
                    yield os.getpid(), before == "sluice_spark.workers", zipped

            return Reader()

    spark.dataSource.register(Looking)
    given = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path)}
    looks: list[Any] = []
    for _ in range(4):  # on two cores there are two workers: one of them has to be used again
        fill(10)
        looks += spark.read.format("sqs_looking").options(**given, waitTimeSeconds=1).load().collect()
    assert all(look.zipped for look in looks)
    first = {look.worker: look for look in reversed(looks)}
    again = [look for look in looks if look is not first[look.worker]]
    assert again
    assert all(look.spared for look in again)
