"""Recovery: the share partitions and settings that a start finds in the state of share groups."""

import logging
from collections.abc import Callable, Mapping

from headwater.errors import RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.log.shares.share_store import ShareStore
from headwater.log.storage.catalog import Catalog
from headwater.queue.share_config import ShareConfig, parse_share_config
from headwater.queue.share_partition import SharePartition
from headwater.queue.share_session import Place

__all__ = ["Opened", "recover", "stored_config"]

logger = logging.getLogger(__name__)

Opened = dict[str, dict[Place, OpenShare]]
"""The share partitions of each group."""


def recover(
    store: ShareStore, catalog: Catalog, config_of: Callable[[str], ShareConfig]
) -> tuple[Opened, list[OpenShare]]:
    """Opens what is stored, without the partitions that are gone or were in memory only.

    Returns all of it, and what differs from what is stored.
    """
    opened: Opened = {}
    changed, lost = [], []
    for key, stored in store.take_recovered().items():
        topic = catalog.by_id.get(key.topic_id)
        if topic is None or not topic.parsed.headwater_durable or key.partition >= len(topic.partitions):
            lost.append(key)
            continue
        log = topic.partitions[key.partition]
        config = config_of(key.group)
        pledged = store.pledges.of(key)
        state = SharePartition.recover(stored.start, stored.runs, config, pledged)
        state.settled_ahead = stored.facts.settled_ahead
        state.counts = state.counts.plus(**stored.facts.counts._asdict())
        state.parking.begin(stored.facts, stored.first_deferred, stored.cancelled)
        share = OpenShare(key, state, log)
        is_changed = any(run.is_last_delivery(config.delivery_count_limit) for run in stored.runs)
        if not log.offline and state.drop_from(log.high_watermark):
            logger.warning("%s: share group %s was ahead of the log", log.name, key.group)
            is_changed = True
        if is_changed:
            changed.append(share)
        opened.setdefault(key.group, {})[key.topic_id, key.partition] = share
    try:
        store.forget(lost)
    except RequestError as refused:
        logger.warning("share groups keep deleted topics until the disk has space: %s", refused)
    return opened, changed


def stored_config(group: str, config: Mapping[str, str]) -> ShareConfig:
    """The stored settings of a group, or the defaults if this version cannot use them."""
    try:
        return parse_share_config(config)
    except RequestError as refused:
        logger.warning("share group %s has the default settings: %s", group, refused)
        return ShareConfig()
