"""The lives of sinks, effects and receivers in the documents: ``make life-pages`` draws them."""

from pathlib import Path

from headwater.sink.effects.life import EFFECT_LIFE, RECEIVER_LIFE, DeliveryEvent
from headwater.sink.loop.life import LIFE, SinkEvent
from support.lifetable import LifePage

__all__ = ["PAGES"]

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    LifePage(DOCS / "sinks.md", {"a sink": (LIFE, SinkEvent)}, "life-pages"),
    LifePage(
        DOCS / "effects.md",
        {"an effect": (EFFECT_LIFE, DeliveryEvent), "a receiver": (RECEIVER_LIFE, DeliveryEvent)},
        "life-pages",
    ),
)

if __name__ == "__main__":
    for page in PAGES:
        page.write()
