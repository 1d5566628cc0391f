"""The schema of --llmb-json is made from the records of its document."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_generated_json_schema_is_up_to_date() -> None:
    """`python scripts/json_schema` writes it anew."""
    script = runpy.run_path(str(CHECKOUT / "scripts" / "json_schema"))
    text = Path(script["PATH"]).read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(script["make_schema"]()))
