"""A bounded read: of the queues until they are empty, or without queues of the log that is retained."""

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluice_spark.log.offsets import Position
from sluice_spark.source.reading import Reads, as_partitions
from sluice_spark.source.receiver import receiver_of, writable_log


class SqsReader(Reads, DataSourceReader):
    """Receives in `partitions`, on the driver.

    A task that is tried again reads what was staged, and receives nothing.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Receives until the queues are empty or the limits reached, and stages; each action of a plan does so once.

        All that was received is read: the limits are where receiving ends, a little is on its way then.
        """
        staged = writable_log(self._options)
        if not self._options.queue_urls:
            view = staged.view()
            return as_partitions(self._options, view.between(Position(view.first), view.end))
        start = staged.end()
        staged.take_over(start)
        receiver = receiver_of(self._options, staged, until_empty=True, enough=self._options.admission)
        receiver.start(staged.log.end)
        receiver.join()
        receiver.check()
        return as_partitions(self._options, staged.log.between(start, staged.log.end))
