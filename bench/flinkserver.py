"""Apache Flink on two cores, as a process that runs statements: a JSON object a line in, one a line out. Runs in an environment of its own.

{"statements": ["CREATE TABLE …"], "insert": "INSERT INTO …"}   ->   {"seconds": 12.3}
{"statements": […], "begin": "INSERT INTO …"}                    ->   {}, and the job runs until
{"statements": [], "cancel": true}                               ->   {}
"""

import json
import sys
import time

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": "1 s",
    "state.backend.type": "hashmap",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "pipeline.object-reuse": "true",
}


def main() -> None:
    folder = sys.argv[1]
    options = Configuration()
    for name, value in {**SETTINGS, "execution.checkpointing.dir": f"file://{folder}/checkpoints"}.items():
        options.set_string(name, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(options).build()
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            for statement in asked["statements"]:
                tables.execute_sql(statement)
            if asked.get("begin"):
                running = tables.execute_sql(asked["begin"]).get_job_client()
            if asked.get("cancel"):
                running.cancel().result()
            if not asked.get("insert"):
                print(json.dumps({}), flush=True)
                continue
            begun = time.perf_counter()
            job = tables.execute_sql(asked["insert"])
            job.wait()
            net = job.get_job_client().get_job_execution_result().result().get_net_runtime() / 1000
            print(json.dumps({"seconds": net, "wall": time.perf_counter() - begun}), flush=True)
        except Exception as error:  # noqa: BLE001 (the other side decides)
            print(json.dumps({"error": str(error)[:3000]}), flush=True)


if __name__ == "__main__":
    main()
