"""What Spark's Python workers need so that a task costs what its rows cost."""

import sys
import zipimport


def spare_pyspark_zip() -> None:
    """Makes `importlib.invalidate_caches()` leave pyspark.zip alone, in this process.

    Spark calls it before every task; zipimport of Python 3.11 then reads the archive's directory anew, 0.13 CPU
    seconds: SPARK-54744. The archive
    never changes while a worker lives. Python 3.13 only notes it for later.
    """
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = _leave  # type: ignore[method-assign]  # as said above


def _leave(self: zipimport.zipimporter) -> None:
    del self
