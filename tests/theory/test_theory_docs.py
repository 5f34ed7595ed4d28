"""The committed audit is the one that the code writes."""

from __future__ import annotations

from pathlib import Path

from clustermim.theory.audit import audit
from clustermim.theory.render import audit_markdown


def test_audit_document_is_current() -> None:
    document = Path(__file__).parents[2] / "docs" / "audit.md"
    assert document.read_text(encoding="utf-8") == audit_markdown(audit())
