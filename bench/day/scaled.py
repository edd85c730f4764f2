"""Scaled: settings of topics, divided like the day. Those that Headwater makes later get theirs when they are first seen.

kept in full   orders, and what Headwater keeps for good: segments roll, nothing is removed
passing        the other streams: retention removes what is older than four hours of the shop
by key         tables, views, results, the broker's own topics: compaction, and deletions that leave
"""

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from plan import Plan

PASSING = ("searches", "clicks", "page_views", "requests", "visits")
TICKS = "headwater.ticks"
ASIDE = "aside"
"""A guest deletes it and makes it again."""
OWN = ("__consumer_offsets", "__transaction_state")
CAPTURED = "warehouse.stock"
TIMEOUT_S = 30.0


def settings(plan: Plan, topic: str, policy: str) -> dict[str, str]:
    """What a topic is set to, by its name and by the policy that it was made with."""
    roll = {"segment.ms": str(plan.segment_ms)}
    if topic in {*PASSING, TICKS}:
        return roll | {"retention.ms": str(plan.retention_ms)}
    if policy == "compact" or topic == CAPTURED:
        return roll | {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": str(plan.retention_ms),
        }
    return roll


class Scaled:
    """Looks for topics that are not scaled yet. For one thread."""

    def __init__(self, bootstrap: str, plan: Plan) -> None:
        self._bootstrap = bootstrap
        self._plan = plan
        self.policies: dict[str, str] = {}
        """Of the topics that are scaled, what the log does with old records."""

    def look(self) -> None:
        """Scales what is new; a log that is away is asked again the next time."""
        asked = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        try:
            there = set(asked.list_topics(timeout=TIMEOUT_S).topics) | set(OWN)
            new = sorted(there - self.policies.keys())
            if not new:
                return
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in new]
            found = asked.describe_configs(resources, request_timeout=TIMEOUT_S)
            policies = {
                each.name: answer.result(TIMEOUT_S)["cleanup.policy"].value for each, answer in found.items()
            }
            wanted = [self._resource(name, policies[name]) for name in new]
            for each, answer in asked.incremental_alter_configs(wanted, request_timeout=TIMEOUT_S).items():
                answer.result(TIMEOUT_S)
                self.policies[each.name] = kind(each.name, policies[each.name])
        except (KafkaException, TimeoutError):
            return

    def _resource(self, topic: str, policy: str) -> ConfigResource:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings(self._plan, topic, policy).items()
        ]
        return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def kind(topic: str, policy: str) -> str:
    """What its files are counted with."""
    if topic in {*OWN, TICKS} or topic.endswith(".progress"):
        return "Headwater's own topics"
    if topic == ASIDE:
        return "topics on the side"
    if policy == "compact" or topic == CAPTURED:
        return "tables and views"
    return "passing streams" if topic in PASSING else "streams kept in full"
