"""Every test in this folder runs twice: against the embedded log, and against Apache Kafka, which must agree."""

import pytest


@pytest.fixture(scope="session", params=["embedded", "kafka"])
def bootstrap(request):
    server = request.getfixturevalue("broker" if request.param == "embedded" else "kafka")
    return server.bootstrap
