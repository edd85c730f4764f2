"""Services: what all views of one runner share."""

from dataclasses import dataclass

from headwater.clock import Clock
from headwater.config import Settings
from headwater.declare.graph import Graph
from headwater.pipeline.engine.engine import Engine
from headwater.pipeline.left_out.invalid_records import InvalidRecords
from headwater.pipeline.left_out.late_records import LateRecords
from headwater.pipeline.left_out.side_records import SideTopic
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.attention import Attention
from headwater.pipeline.time.ticks import Ticks
from headwater.pipeline.topics import Topics

__all__ = ["Services"]


@dataclass
class Services:
    """The graph, the clients of the log and the clocks of one runner."""

    settings: Settings
    graph: Graph
    engine: Engine
    topics: Topics
    clock: Clock
    attention: Attention
    watermark: time.Watermark
    """How the watermark of a view is decided; a test may move it by hand."""
    invalid: InvalidRecords
    late: LateRecords
    side_topic: SideTopic
    ticks: Ticks

    @classmethod
    def start(
        cls,
        settings: Settings,
        graph: Graph,
        engine: Engine,
        *,
        clock: Clock,
        attention: Attention,
        watermark: time.Watermark,
    ) -> "Services":
        topics = Topics(settings.access)
        return cls(
            settings,
            graph,
            engine,
            topics,
            clock,
            attention,
            watermark,
            InvalidRecords(topics, graph, settings.partitions, engine),
            LateRecords(topics, graph, engine),
            SideTopic(settings.access),
            Ticks(settings.access, clock),
        )

    def partitions(self) -> dict[str, int]:
        """All topics with their number of partitions, with those of the graph that are still to be made."""
        streams = [stream.topic for stream in self.graph.streams.values() if stream.pattern is None]
        missing = dict.fromkeys([*streams, *self.graph.views], self.settings.partitions)
        return missing | self.topics.partitions()

    def close(self) -> None:
        self.invalid.close()
        self.side_topic.close()
        self.ticks.close()
        self.topics.close()
