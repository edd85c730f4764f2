"""Logs of children rotate while a child writes, and stay within their bound."""

from headwater.child_log import ChildLog


def test_a_log_rotates_in_place_and_takes_a_bounded_part_of_the_disk(tmp_path):
    log = ChildLog(tmp_path / "pipeline.log", bytes_max=10_000, older=2)
    written = []
    with log.open("pipeline", 0) as child:
        for number in range(1_000):
            line = f"line {number:4} of a child that never closes its file\n"
            written.append(line)
            child.write(line.encode())
            child.flush()
            log.rotate()
    files = [tmp_path / f"pipeline.log{end}" for end in (".2", ".1", "")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in files)
    assert all(file.stat().st_size <= 10_100 for file in files)
    kept = "".join(file.read_text() for file in files)
    assert len(kept) > 20_000
    assert kept == "".join(written)[-len(kept) :], "the newest lines, without a gap"


def test_the_last_lines_are_those_of_the_last_process(tmp_path):
    log = ChildLog(tmp_path / "pipeline.log")
    for process in (1, 2):
        with log.open("pipeline", process) as child:
            child.write(f"headwater: error {process}\nend of {process}\n".encode())
    assert log.tail() == ["headwater: error 2", "end of 2"]
    assert log.last_error() == "headwater: error 2"
