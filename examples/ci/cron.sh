#!/usr/bin/env bash
# A nightly gate from cron on a login node. The arguments go to pytest: what is launched, or which logs are judged.
#
#   LLMB_HOME=/lustre/llmb
#   15 22 * * * /lustre/llmb/cron.sh --llmb-launch -k "grok1 and fp8"
#
# $LLMB_HOME holds cluster.yaml, the folder `baselines` with those of this cluster (docs/how-to/run-every-night.md says how they are recorded),
# and the virtual environment .venv. The package is on no index; a wheel, a checkout or a git URL installs it:
#
#   python3 -m venv .venv
#   .venv/bin/pip install "pytest-llmbench[history,html] @ file:///lustre/llmb/pytest_llmbench-0.1.0-py3-none-any.whl"
#
# Each night's reports are kept in $LLMB_HOME/reports, the verdicts of all nights in $LLMB_HOME/history.db. Cron mails what
# this prints. Where CHAT_WEBHOOK is in the environment (set it in a file that only you can read, not in the crontab), the
# same message goes to a chat. Ends as pytest did; 75: the last night still runs.
set -euo pipefail

home=${LLMB_HOME:?the folder with cluster.yaml and .venv}
cd "$home"
exec 9>.lock
if ! flock --nonblock 9; then
    echo "llmbench: the last night still runs ($home/.lock)" >&2
    exit 75
fi

reports=$home/reports/$(date +%Y-%m-%dT%H%M%S)
mkdir -p "$reports"
status=0
.venv/bin/pytest -v "$@" --llmb-history=history.db \
    --llmb-baselines=baselines --llmb-against=recorded --llmb-trend=fail \
    --llmb-junit="$reports/junit.xml" --llmb-json="$reports/llmb.json" --llmb-html="$reports/llmb.html" \
    >"$reports/output.txt" 2>&1 9>&- || status=$?

# A session that does not get to its end (a bad option, a crash) leaves no document.
message="llmbench ERROR (exit code $status)"
slack="{\"text\": \"$message\"}"
if [ -f "$reports/llmb.json" ]; then
    message=$(.venv/bin/llmbench chat "$reports/llmb.json" --link "")
    slack=$(.venv/bin/llmbench chat "$reports/llmb.json" --format=slack --link "$reports/output.txt")
fi
printf '%s\n%s\n' "$message" "$reports/output.txt"

# curl reads the address from its input, so that no list of processes shows it.
if [ -n "${CHAT_WEBHOOK:-}" ]; then
    printf '%s' "$slack" >"$reports/chat.json"
    printf 'url = "%s"\n' "$CHAT_WEBHOOK" | curl --config - --silent --show-error --fail --max-time 30 \
        --header 'Content-Type: application/json' --data @"$reports/chat.json" >/dev/null ||
        echo "llmbench: the chat was not told" >&2
fi
exit "$status"
