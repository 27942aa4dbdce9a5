"""A bounded read: of the queues until they are empty, or without queues of the log that is retained."""

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluice_spark.log.offsets import Position
from sluice_spark.log.store import open_store
from sluice_spark.source.depth import Depth
from sluice_spark.source.dispatching import Dispatcher, adopted
from sluice_spark.source.reading import Reads, Rows, as_partitions, task_clients
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


class PlannedReader(Reads, DataSourceReader):
    """`mode=executors`: plans what the tasks receive in `read`, each until the queues have nothing new."""

    def partitions(self) -> Sequence[InputPartition]:
        """Claims the log; each action of a plan does so once. Waits for no message."""
        options = self._options
        store = open_store(options.staging_location, options.identity.profile)
        depth = Depth(task_clients(options), options.queue_urls, deleting=options.delete, patience_s=options.patience_s)
        try:
            planned = Dispatcher(store, depth, adopted(store)).chains(options.admission)
        finally:
            depth.stop()
        return [Rows(options.staging_location, options.identity.profile, (), order=chain) for chain in planned]
