#!/usr/bin/env bash
# transformers 5.6.0: a Trainer that resumes reports a train_runtime of the steps that it ran, and a train_steps_per_second
# and train_samples_per_second that count all steps of the run, also those before the checkpoint. Resumed at step 60 of 100,
# the printed rate is 2.5 times the true one, so a gate that compares it calls a slower run a faster one. (5.24.0 divides
# by the steps that ran.)
#
# Seen:
#   transformers 5.6.0: resumed at step 60 of 100
#   train_runtime x train_steps_per_second = 100 steps; 40 steps ran
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    transformers==5.6.0 accelerate==1.10.1 torch==2.13.0 numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys
import time

import torch
import transformers


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index % 7)), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


class Count(transformers.TrainerCallback):
    steps = 0

    def on_step_end(self, *_, **__):
        Count.steps += 1
        time.sleep(0.1)  # the clock of a step, so that rounding decides nothing


def train(resume):
    arguments = transformers.TrainingArguments(
        output_dir="out",
        max_steps=100,
        per_device_train_batch_size=4,
        save_steps=60,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Count.steps = 0
    trainer = transformers.Trainer(Model(), arguments, train_dataset=Data(), callbacks=[Count()])
    return trainer.train(resume_from_checkpoint=resume).metrics


train(None)
metrics = train("out/checkpoint-60")
counted = metrics["train_runtime"] * metrics["train_steps_per_second"]
print(f"transformers {transformers.__version__}: resumed at step 60 of 100")
print(f"train_runtime x train_steps_per_second = {counted:.0f} steps; {Count.steps} steps ran")
sys.exit(not (Count.steps == 40 and 97 < counted < 103))
PYTHON
