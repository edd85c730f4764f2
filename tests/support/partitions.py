"""What the broker's committer does with a partition, without its thread."""

from headwater.log.storage.partition import Partition


def sync(partition: Partition) -> None:
    """One sync round, from its beginning to its end."""
    sync_round = partition.begin_sync()
    sync_round.run()
    partition.finish_sync(sync_round)
