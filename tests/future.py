"""An invented future version of perdure: the current sources with a few lines changed, in one process only.

Import this before perdure. Every kind of record has the next format, and today's is read too. There is a new
kind of question, one status of tasks and one of accounts have other names, and items have a new kind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

UPGRADED = """body.replace('"format":2', '"format":3', 1)"""
UPGRADED_BODY = """body.replace(f'"format":{self.number - 1}', f'"format":{self.number}', 1)"""
CHANGES: dict[str, list[tuple[str, str]]] = {
    "perdure.storage.body_format": [("self._decoder.decode(body)", f"self._decoder.decode({UPGRADED_BODY})")],
    "perdure.tasks.task_record": [
        ("TASK_FORMAT = 2\n", "TASK_FORMAT = 3\n"),
        ("task = _decoder.decode(body)", f"task = _decoder.decode(body := {UPGRADED})"),
    ],
    "perdure.tasks.task_snapshot": [("LEASE_FORMAT = 1\n", "LEASE_FORMAT = 2\n")],
    "perdure.tasks.idempotency": [("tag_field=FORMAT_FIELD, tag=1", "tag_field=FORMAT_FIELD, tag=2")],
    "perdure.tasks.lifecycle": [('= "input_required"\n', '= "awaiting_input"\n')],
    "perdure.tasks.inputs": [
        ('    ROOTS = "roots/list"\n', '    ROOTS = "roots/list"\n    URL = "elicitation/url"\n'),
        ("    InputKind.ROOTS: RootsAnswer,\n", "    InputKind.ROOTS: RootsAnswer,\n"
         "    InputKind.URL: ElicitationAnswer,\n"),
    ],
    "perdure.feeds.account": [
        ("tag_field=FORMAT_FIELD, tag=2", "tag_field=FORMAT_FIELD, tag=3"),
        ('= "active"\n', '= "followed"\n'),
    ],
    "perdure.feeds.item": [
        ("tag_field=FORMAT_FIELD, tag=2", "tag_field=FORMAT_FIELD, tag=3"),
        ('Literal["post", ', 'Literal["video", "post", '),
    ],
}  # fmt: skip


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in CHANGES[fullname]:
            assert source.count(old) == 1, (fullname, old)
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in CHANGES else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


assert not any(name in sys.modules for name in CHANGES), "import this before perdure"
sys.meta_path.insert(0, _Finder())
