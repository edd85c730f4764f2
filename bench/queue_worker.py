"""A worker of ours with sixteen handlers for ``bench/queues.py``, like ``queue_rabbit.py``.

queue_worker.py BOOTSTRAP [key]
"""

import sys
import threading

import headwater as hw
from headwater.worker.loop import Loop
from queue_rabbit import WORKERS, Counting, say


def drain(bootstrap: str, queue: str, group: str, wanted: int, order: str) -> None:
    app, counting, over = hw.App("bench"), Counting(wanted), threading.Event()

    @app.worker(topic=queue, group=group, concurrency=WORKERS, order_by=order)
    async def handle(message: bytes) -> None:
        if counting.handle(message):
            over.set()

    graph = app.graph()
    loop = Loop(bootstrap, graph, graph.workers["handle"])
    thread = threading.Thread(target=loop.run)
    thread.start()
    over.wait()
    loop.stop()
    thread.join()
    say(counting.answer())


def main() -> None:
    bootstrap, order = sys.argv[1], "".join(sys.argv[2:])
    for line in sys.stdin:
        _, queue, group, wanted = line.split()
        drain(bootstrap, queue, group, int(wanted), order)


if __name__ == "__main__":
    main()
