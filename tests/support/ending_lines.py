"""Log lines that end a run, and texts that combine several of them."""

from __future__ import annotations

from support.written_logs import nemo2_run

END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"
FAKE = "llmb_install/workloads/pretrain_fakecfg/experiments/pretrain_fakecfg_8b_bf16_"
TRACEBACK = "[default2]:[rank2]: Traceback (most recent call last):\n"

LINES = [
    ("slurmstepd: error: *** JOB 1999616 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***",
     "time-limit"),
    (" 0: [2026-08-18T04:17:57.018] error: *** STEP 3108456.2 ON nid007590 CANCELLED AT 2026-08-18T04:17:57 "
     "DUE TO TIME LIMIT ***", "time-limit"),
    ("slurmstepd: error: *** JOB 454600 CANCELLED DUE TO TIME LIMIT ***", "time-limit"),
    ("srun: error: Node failure on jean-zay-iam37", "node-failure"),
    ("slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, "
     "SEE SLURMCTLD LOG FOR DETAILS ***", "node-failure"),
    ("[2025-12-17T12:59:34.342] error: *** STEP 2243671.21 ON nid006549 CANCELLED AT 2025-12-17T12:59:34 "
     "DUE TO TASK FAILURE ***", "task-failure"),
    ("srun: error: n1: tasks 0-7: Exited with exit code 7", "task-failure"),
    ("srun: error: nid006549: task 0: Segmentation fault (core dumped)", "segfault"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***", "requeued"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO PREEMPTION ***", "preempted"),
    ("[NeMo I 2025-03-07 22:48:03 preemption:67] Preemption detected, saving checkpoint and exiting", "preempted"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 ***", "cancelled"),
    ("slurmstepd: error: *** STEP 454600.0 CANCELLED AT 2025-05-21T11:33:42 ***", "step-cancelled"),
    ("srun: error: nid006549: task 0: Out Of Memory", "out-of-memory"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=608.0. Some of the step tasks have been OOM Killed.",
     "out-of-memory"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "gpu-out-of-memory"),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", "gpu-out-of-memory"),
    ("[rank3]:[E] [PG 0 Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "nccl-timeout"),
    ("Traceback (most recent call last):", "traceback"),
    ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-out-of-memory"),
    ("RuntimeError: CUDA error: out of memory", "gpu-out-of-memory"),
    ("slurmstepd: error: Detected 2 oom-kill event(s) in step 7.0 cgroup.", "out-of-memory"),
    ("[ 99.1] Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB", "out-of-memory"),
    ("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-failure"),
    ("[rank3]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "gpu-failure"),
    ("RuntimeError: CUDA error: CUDA_ERROR_ECC_UNCORRECTABLE", "gpu-failure"),
    ("slurmstepd-n7: error: a task was killed by the out-of-memory handler", "out-of-memory"),
    ("ValueError: The loss returned in `training_step` is nan.", "diverged"),
    ("n7 kernel: NVRM: Xid (PCI:0000:0a:00): 79, pid=1, GPU has fallen off the bus.", "gpu-failure"),
    ("n7 kernel: NVRM: Xid (PCI:0000:0a:00): 31, pid=1, Ch 00000008, MMU Fault", None),
    ("RuntimeError: Rank 3, node n1, device 3, iteration 7: Unexpected result nan (message='found NaN in local grad "
     "norm for bucket #0 in backward pass before data-parallel communication collective')", "diverged"),
    ("AssertionError: Rank 11: found NaN in local grad norm in backward pass before data-parallel communication "
     "collective. Device: 3", "diverged"),
    (" 0: [exiting program after consuming all available data at iteration 30] datetime: 2026-06-26 14:33:14.449172 ",
     "exited"),
    ("[exiting program after 235.0166 minutes] datetime: 2026-06-26 14:33:14 ", "exited"),
    ("INFO: exiting program after consuming all available data", None),
    ("Time limit reached. Elapsed time is 0:05:00. Signaling Trainer to stop.", "exited"),
    ("[NeMo I 2026-06-26 14:33:14 x:1] Time limit reached. Elapsed time is 1 day, 3:05:00. Signaling Trainer to stop.",
     "exited"),
    ("stopping_early: wallclock_cap train_time:600036ms step:13780/20000", "exited"),
    ("Time limit reached. Elapsed time is shown above", None),
    ("Elapsed time is 0:05:00. Signaling Trainer to stop.", None),
    ("stopping_early: False", None),
    ("RuntimeError: CUDA error: unspecified launch failure", None),
    ("/var/spool/slurmd/job7/slurm_script: line 33: 12345 Killed                  torchrun train.py", "task-failure"),
    ("srun: error: n1: task 3: Killed", "task-failure"),
    ("srun: error: n1: tasks 37-39: Terminated", None),
    ("| GPU  Name        Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |", None),
    ("  max_tokens_to_oom ............................... 12000", None),
    ("slurmstepd: error: NVML: Failed to get usage(3): Not Found", None),
    ("XLA autotuning: RESOURCE_EXHAUSTED for one candidate, trying the next", None),
    ("the test was CANCELLED by the user", None),
    ("srun: Job step aborted: Waiting up to 62 seconds for job step to finish.", None),
]  # fmt: skip


TIME_LIMIT = LINES[0][0] + "\n"
TASK = LINES[6][0] + "\n"
JOB_CANCELLED = LINES[11][0] + "\n"
STEP_CANCELLED = LINES[12][0] + "\n"
WATCHDOG = LINES[17][0] + "\n"
PREEMPTION = LINES[10][0] + "\n"
TRACE = "Traceback (most recent call last):\n  File\n"
NCCL = f"{TRACE}torch.distributed.DistBackendError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL()\n"
RAISED = f"{TRACE}ValueError: x\n"
CHILD = f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
PIPE = f"{TRACE}BrokenPipeError: [Errno 32] Broken pipe\n"
SIGTERM = f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n"
PEER = f"{TRACE}torch.distributed.DistBackendError: NCCL error in: x.cpp:9, remote process exited or there was one\n"
OOM = f"{TRACE}torch.OutOfMemoryError: CUDA out of memory.\n"
ECC = f"{TRACE}RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
NAN = f"{TRACE}RuntimeError: Rank 3, iteration 7: Unexpected result nan (message='found NaN in local grad norm')\n"
QUEUE_SIGTERM = (
    f"{TRACE}_queue.Empty\n\nDuring handling of the above exception, another exception occurred:\n\n"
    f"{TRACE}RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated. \n"
)
SEGFAULT = LINES[7][0] + "\n"

CAUSES = [
    ("Slurm's cause wins over its consequences", TIME_LIMIT + RAISED, "time-limit", 1, None),
    ("an earlier exception is reported with Slurm's cause", RAISED + TIME_LIMIT, "time-limit", 4, ("traceback", 3)),
    ("an earlier signal is not reported", SIGTERM + TIME_LIMIT, "time-limit", 4, None),
    ("a cancelled job", JOB_CANCELLED + SIGTERM, "cancelled", 1, None),
    ("a hanging job that was cancelled", WATCHDOG + JOB_CANCELLED, "cancelled", 2, ("nccl-timeout", 1)),
    ("a step cancelled after a crash", RAISED + STEP_CANCELLED, "traceback", 3, None),
    ("a step cancelled after a crash, reported first", STEP_CANCELLED + RAISED, "traceback", 4, None),
    ("a step cancelled without a crash", STEP_CANCELLED + SIGTERM, "step-cancelled", 1, None),
    ("a cancelled step and the exit of its task", STEP_CANCELLED + SIGTERM + TASK, "step-cancelled", 1,
     None),
    ("a step cancelled because a task failed", TASK + STEP_CANCELLED + SIGTERM, "aftermath", 5, None),
    ("a preemption by cancelling the job", PREEMPTION + JOB_CANCELLED, "cancelled", 2, None),
    ("a preemption reported by the cancelled step only", PREEMPTION + STEP_CANCELLED, "step-cancelled", 2, None),
    ("a preemption for another job", PREEMPTION + LINES[9][0] + "\n", "preempted", 1, None),
    ("a failed task after its exception", RAISED + TASK, "traceback", 3, None),
    ("a failed task before its exception", TASK + RAISED, "traceback", 4, None),
    ("an exception, then NCCL", RAISED + WATCHDOG, "traceback", 3, ("nccl-timeout", 4)),
    ("NCCL's exception alone", NCCL, "nccl-timeout", 3, None),
    ("NCCL and its exception before another", WATCHDOG + NCCL + RAISED,
     "nccl-timeout", 1, ("traceback", 7)),
    ("an exception that the run may have survived, then another", f"{TRACE}ImportError: no apex\n" + RAISED,
     "traceback", 3, ("traceback", 6)),
    ("NCCL, then an exception", WATCHDOG + RAISED, "nccl-timeout", 1, ("traceback", 4)),
    ("an exception before NCCL and one after", RAISED + WATCHDOG + RAISED, "traceback", 3, ("nccl-timeout", 4)),
    ("a lost peer, then NCCL", PEER + WATCHDOG, "nccl-timeout", 4, None),
    ("NCCL, then a failed task", WATCHDOG + TASK, "nccl-timeout", 1, None),
    ("a failed task, then NCCL", TASK + WATCHDOG, "task-failure", 1, ("nccl-timeout", 2)),
    ("a crash, then NCCL", SEGFAULT + WATCHDOG, "segfault", 1, ("nccl-timeout", 2)),
    ("an exception, then a crash", RAISED + SEGFAULT, "traceback", 3, None),
    ("a launcher that reports its child, then the exception", CHILD + RAISED, "traceback", 6, None),
    ("only a launcher that reports its child", CHILD + TASK, "aftermath", 3, None),
    ("a broken pipe before the cause", PIPE + RAISED, "traceback", 6, None),
    ("a signal within chained exceptions", QUEUE_SIGTERM + TASK, "aftermath", 3, None),
    ("a truncated exception, then a complete one", TRACE + "[rank1]: " + RAISED.replace("\n", "\n[rank1]: "),
     "traceback", 5, None),
    ("a full GPU, then NCCL", OOM + WATCHDOG, "gpu-out-of-memory", 3, ("nccl-timeout", 4)),
    ("a broken GPU reported after NCCL", WATCHDOG + ECC, "gpu-failure", 4, ("nccl-timeout", 1)),
    ("a loss that is not finite", NAN + WATCHDOG, "diverged", 3, ("nccl-timeout", 4)),
    ("an interrupt at a terminal", f"{TRACE}KeyboardInterrupt\n", "step-cancelled", 3, None),
    ("an interrupt after a crash", RAISED + f"{TRACE}KeyboardInterrupt\n", "traceback", 3, None),
    ("a full node, then a requeue", LINES[14][0] + "\n" + LINES[8][0], "out-of-memory", 1, ("requeued", 2)),
]  # fmt: skip


STREAM_PAIRS = [
    (RAISED, TIME_LIMIT, "time-limit", "x.err", "traceback"),
    (TIME_LIMIT, RAISED, "time-limit", "", "traceback"),
    (RAISED, STEP_CANCELLED, "traceback", "", None),
    (STEP_CANCELLED, RAISED, "traceback", "x.err", None),
    (WATCHDOG, RAISED, "traceback", "x.err", "nccl-timeout"),
    (RAISED, WATCHDOG, "traceback", "", "nccl-timeout"),
    (RAISED, RAISED, "traceback", "", None),
    ("", TIME_LIMIT, "time-limit", "x.err", None),
    (TIME_LIMIT, "", "time-limit", "", None),
    (nemo2_run(0, 9) + TRACE + nemo2_run(10, 20), TASK, "task-failure", "x.err", None),
]
