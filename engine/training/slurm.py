"""SLURM: start this job again once its time is over; the same command then continues the run."""

import os
import subprocess
from collections.abc import Callable

from eblvm.engine.errors import UserError, printable, reason

PATIENCE_S = 60.0


def require() -> None:
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError(
            "got --requeue outside of a SLURM job (SLURM_JOB_ID is not set), expected one; submit the run by sbatch, "
            "or remove --requeue (of a run's own configuration: --no-requeue)"
        )


def job() -> str:
    """Return the name of this job, of an array that of its task: scontrol takes SLURM_JOB_ID for more than one."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return os.environ["SLURM_JOB_ID"] if task is None else f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}"


def requeue(say: Callable[[str], None]) -> None:
    """Ask for this job again, and say so, or why SLURM refused."""
    try:
        done = subprocess.run(["scontrol", "requeue", job()], capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        refused = reason(error)
    else:
        refused = printable(done.stderr.strip().partition("\n")[0]) or f"exit code {done.returncode}"
        if done.returncode == 0:
            say(f"asked SLURM to start job {job()} again")
            return
    say(f"SLURM does not start job {job()} again (scontrol: {refused}); submit it again, it continues the run")
