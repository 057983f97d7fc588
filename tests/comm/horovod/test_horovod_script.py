"""The script of docs/horovod.md, as it is, under the launcher."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.comm.launch.launching import launch
from tests.rarely import rarely

_PAGE = Path(__file__).parents[3] / "docs" / "horovod.md"


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [*rarely(1), 2])
def test_the_script_trains(ranks, tmp_path):
    script = re.search(r"^```python\n(# train_horovod.py\n.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert script is not None
    (tmp_path / "train_horovod.py").write_text(script[1])
    code, out, err = launch(tmp_path, "-np", str(ranks), "train_horovod.py")
    assert code == 0, err
    found = re.search(r"ranks: (\d), last loss: ([\d.]+)$", out, re.MULTILINE)
    assert found is not None, out
    assert int(found[1]) == ranks
    assert float(found[2]) < 0.5
