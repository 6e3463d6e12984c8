"""A model that needs code of its own: transformers does not know its architecture, whose classes lie in the folder."""

from __future__ import annotations

import json
from pathlib import Path

CLASSES = ("Model", "ForMaskedLM", "ForSequenceClassification")
AUTO = {name: f"AutoModel{name.removeprefix('Model')}" for name in CLASSES}


def give_own_code(folder: Path) -> Path:
    """Make the BERT in `folder` such a model. Where its code runs, the file `.ran` appears there: hidden, so that it is no
    part of the model's hash."""
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "odd.OddConfig"} | {AUTO[name]: f"odd.Odd{name}" for name in CLASSES}
    architectures = [name.replace("Bert", "Odd") for name in config["architectures"]]
    config |= {"model_type": "odd-one", "architectures": architectures, "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "odd.py").write_text(
        "from pathlib import Path\n"
        f"from transformers import BertConfig, {', '.join(f'Bert{name}' for name in CLASSES)}\n"
        f"Path({str(folder / '.ran')!r}).touch()\n"
        "class OddConfig(BertConfig):\n    model_type = 'odd-one'\n"
        + "".join(f"class Odd{name}(Bert{name}):\n    config_class = OddConfig\n" for name in CLASSES)
    )
    return folder
