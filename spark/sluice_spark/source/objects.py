"""S3, as whoever reads the queue: for the objects that messages name."""

from typing import Any

from sluice_spark.formats.s3_objects import open_objects
from sluice_spark.options import Options
from sluice_spark.sqs.access import region_of


def objects_of(options: Options) -> Any:
    """Open S3 as the queue's identity, in its region unless another is given."""
    region = options.region or (region_of(options.queue_urls[0]) if options.queue_urls else None)
    return open_objects(options.identity, region=region, endpoint=options.files.endpoint)
