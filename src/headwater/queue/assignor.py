"""Which members of a share group fetch which partitions: each has a partition, and each is with a member."""

import uuid
from collections.abc import Mapping

__all__ = ["assign"]


def assign(
    subscriptions: Mapping[str, tuple[str, ...]], topics: Mapping[str, tuple[uuid.UUID, int]]
) -> dict[str, dict[uuid.UUID, tuple[int, ...]]]:
    """The partitions of each member, by topic id. Members of a topic differ by at most one partition of it.

    With more members than partitions, members share; then partitions differ by at most one member.
    """
    assignments: dict[str, dict[uuid.UUID, tuple[int, ...]]] = {member: {} for member in subscriptions}
    for name, (topic_id, count) in sorted(topics.items()):
        members = sorted(member for member, names in subscriptions.items() if name in names)
        for index, member in enumerate(members):
            if len(members) > count:
                assignments[member][topic_id] = (index % count,)
            else:
                assignments[member][topic_id] = tuple(range(index, count, len(members)))
    return assignments
