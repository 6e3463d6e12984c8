"""A model that needs code of its own: transformers does not know its architecture, whose classes lie in the folder."""

from __future__ import annotations

import json
from pathlib import Path


def give_own_code(folder: Path) -> Path:
    """Make the BERT in `folder` such a model. Where its code runs, the file `.ran` appears there: hidden, so that it is no
    part of the model's hash."""
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "odd.OddConfig", "AutoModelForMaskedLM": "odd.OddForMaskedLM"}
    config |= {"model_type": "odd-one", "architectures": ["OddForMaskedLM"], "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "odd.py").write_text(
        "from pathlib import Path\n"
        "from transformers import BertConfig, BertForMaskedLM\n"
        f"Path({str(folder / '.ran')!r}).touch()\n"
        "class OddConfig(BertConfig):\n    model_type = 'odd-one'\n"
        "class OddForMaskedLM(BertForMaskedLM):\n    config_class = OddConfig\n"
    )
    return folder
