#!/usr/bin/env bash
# A nightly gate, run by cron on a login node. The arguments go to pytest: the jobs to launch, or the logs to judge.
#
#   LLMB_HOME=/lustre/llmb
#   15 22 * * * /lustre/llmb/cron.sh --llmb-launch -k "grok1 and fp8"
#
# $LLMB_HOME contains cluster.yaml, the folder `baselines` with the baselines of this cluster (docs/how-to/run-every-night.md explains how to
# record them), and the virtual environment .venv. The package is not on PyPI: install a wheel, a checkout or a git URL:
#
#   python3 -m venv .venv
#   .venv/bin/pip install "pytest-llmbench[history,html] @ file:///lustre/llmb/pytest_llmbench-0.1.0-py3-none-any.whl"
#
# The reports of each session are in $LLMB_HOME/reports, the verdicts of all sessions in $LLMB_HOME/history.db. Cron mails
# the output of this script. If CHAT_WEBHOOK is set (in a file that only you can read, not in the crontab), the same message
# goes to a chat. The exit code is that of pytest; 75: the last session is still running.
set -euo pipefail

home=${LLMB_HOME:?the folder with cluster.yaml and .venv}
cd "$home"
exec 9>.lock
if ! flock --nonblock 9; then
    echo "llmbench: the last session is still running ($home/.lock)" >&2
    exit 75
fi

reports=$home/reports/$(date +%Y-%m-%dT%H%M%S)
mkdir -p "$reports"
status=0
.venv/bin/pytest -v "$@" --llmb-history=history.db \
    --llmb-baselines=baselines --llmb-against=recorded --llmb-trend=fail \
    --llmb-junit="$reports/junit.xml" --llmb-json="$reports/llmb.json" --llmb-html="$reports/llmb.html" \
    >"$reports/output.txt" 2>&1 9>&- || status=$?

# A session that fails early (invalid option, crash) writes no JSON report.
message="llmbench ERROR (exit code $status)"
slack="{\"text\": \"$message\"}"
if [ -f "$reports/llmb.json" ]; then
    message=$(.venv/bin/llmbench chat "$reports/llmb.json" --link "")
    slack=$(.venv/bin/llmbench chat "$reports/llmb.json" --format=slack --link "$reports/output.txt")
fi
printf '%s\n%s\n' "$message" "$reports/output.txt"

# curl reads the URL from its input, so that no process list shows it.
if [ -n "${CHAT_WEBHOOK:-}" ]; then
    printf '%s' "$slack" >"$reports/chat.json"
    printf 'url = "%s"\n' "$CHAT_WEBHOOK" | curl --config - --silent --show-error --fail --max-time 30 \
        --header 'Content-Type: application/json' --data @"$reports/chat.json" >/dev/null ||
        echo "llmbench: cannot send the message to the chat" >&2
fi
exit "$status"
