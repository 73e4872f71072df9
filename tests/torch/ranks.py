"""Start the ranks of a distributed test, one process for each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import handmade


def run_ranks(
    module: str, ranks: int, folder: Path, name: str, plan: dict[str, Any], **variables: str
) -> list[Any]:
    """Call `run_rank(rank, ranks, folder, name, plan)` of a module in every rank, and wait.

    Each rank writes its result to `<folder>/<name>.<rank>.json`. Return all results.
    """
    script = (
        "import json, sys, warnings; from pathlib import Path;"
        "warnings.simplefilter('ignore');"
        f"from {module} import run_rank;"
        "rank, ranks, folder, name, plan = sys.argv[1:];"
        "run_rank(int(rank), int(ranks), Path(folder), name, json.loads(plan))"
    )
    arguments = [str(ranks), str(folder), name, json.dumps(plan)]
    running = [
        handmade.python(
            script, str(rank), *arguments,
            **{"OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank),
               "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), **variables},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for process in running:
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]
