"""FLGo: fedavg on a task of its own, all clients one after the other, data in torch's DataLoader, not shuffled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.work import Work, weights
from peers.worker import Turn, import_torchvision

import_torchvision()

import flgo  # noqa: E402
import flgo.algorithm.fedavg as fedavg  # noqa: E402

PACKAGE = "flgo"


def run(work: Work, turn: Turn) -> None:
    work.write(Path("flgo_work.npz"))  # the task reads it, in this folder
    task = flgo.gen_direct_task_from_file("flgo_task_folder", str(Path(__file__).with_name("flgo_task.py")))
    server = flgo.init(
        task,
        fedavg,
        option={
            "sample": "full",
            "proportion": 1.0,
            "num_steps": work.steps,
            "batch_size": work.batch,
            "learning_rate": work.lr,
            "train_holdout": 0.0,
            "eval_interval": 0,
            "torch_num_threads": turn.threads,
            "no_log_console": True,
            "no_tqdm": True,
        },
    )

    def stop(server: Any) -> bool:
        return not turn(lambda: weights(server.model))

    server.register_exit_condition(stop)  # asked before every round
    server.run()
