"""What executors are sent: the package and the modules beside an application, and nothing else that is beside it."""

import subprocess
import sys
import zipfile

import pytest

from headwater.errors import UsageError
from headwater.pipeline.spark import code_zip


def test_code_runs_from_the_zip_alone(tmp_path):
    app = tmp_path / "app"
    (app / "tools").mkdir(parents=True)
    (app / "tools" / "__init__.py").write_text("")
    (app / "tools" / "count.py").write_text("ONE = 1")
    (app / "near.py").write_text("from tools.count import ONE")
    made = code_zip.pack(tmp_path / "code.zip", app)
    program = (
        f"import sys; sys.path.insert(0, {str(made)!r}); import headwater.pipeline.state.shard, near; "
        "print(headwater.pipeline.state.shard.__file__, near.ONE)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == f"{made}/headwater/pipeline/state/shard.py 1"


def test_environments_hidden_folders_and_data_stay_where_they_are(tmp_path):
    app = tmp_path / "app"
    for name in (".git", "env", "not-a-package"):
        (app / name).mkdir(parents=True)
        (app / name / "module.py").write_text("")
    (app / "env" / "pyvenv.cfg").write_text("")
    (app / "rows.csv").write_text("")
    (app / "app.py").write_text("")
    names = zipfile.ZipFile(code_zip.pack(tmp_path / "code.zip", app)).namelist()
    assert [name for name in names if not name.startswith("headwater/")] == ["app.py"]


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match="into a folder of their own"):
        code_zip.pack(tmp_path / "code.zip", tmp_path, files_max=3)
