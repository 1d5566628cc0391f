"""Names, hashes, settings and log lines that look like secrets but are not."""

from __future__ import annotations

HARMLESS = r"""
PAD_TOKEN=pad_token_128004
MASK_TOKEN=mask_0001
eos_token: 128009
"bos_token_id": 128000,
'pad_token': '<pad>'
'eos_token': '<|endoftext|>', 'unk_token': '<unk>'
max_tokens: 8192
num_tokens=4194304
{'pad_token': '<|finetune_right_pad_id|>', 'additional_special_tokens': []}
special_tokens_map: {'bos_token': '<|begin_of_text|>', 'eos_token': '<|eot_id|>'}
eos_token='</s>' pad_token='[PAD151645]'
image_token_id=151655 video_token_id=151656
tokenizer: meta-llama/Llama-3.1-8B
tokenizer_type ............................... GPT2BPETokenizer
tokenizer_model: /workspace/tokenizers/llama3/tokenizer.model
tokens/s: 12034.55 | tokens per gpu: 1504.3
tokens_per_second=48133.7
consumed_tokens: 1.2e12
token_count=7
https://host/x?a=1&token_count=7
https://host/x?a=1&signature_version=2
https://host/x?tokenizer=llama-3.1-70b&max_tokens=4096
https://host/x?page_token=2
moe_token_dispatcher_type: alltoall
moe_token_drop_policy='probs'
moe-token-dispatcher-type ....................... flex
token_embedding.weight torch.Size([128256, 8192])
next_token_loss: 2.113
per-token loss 1.98e-3 at step 44
tokens: [128000, 9906, 1917]
token 15043 -> 'Hello'
padding token: <pad>, mask token: <mask>
password = None
password=None, user=None
no_password=true
password: null
password: ""
"password": "***"
PASSWORD=
db_password=${DB_PASSWORD}
password={{ vault.password }}
HF_TOKEN=$HF_TOKEN
HF_TOKEN=${HF_TOKEN:-}
export HF_TOKEN="$(cat /run/secrets/hf)"
hf_token: null
hf_token=None
hub_token=None, push_to_hub_token=None
hub_token=<HUB_TOKEN>, hub_model_id=None
Namespace(hf_token=None, api_key=None, use_auth_token=False)
usage: train.py [--hf-token TOKEN] [--api-key KEY] [--password PASSWORD]
  --token TOKEN          token of the hub (default: read from HF_TOKEN_PATH)
  --password PASSWORD    password of the database
error: argument --password: expected one argument
error: the following arguments are required: --api-key, --token
HF_TOKEN_PATH=/root/.cache/huggingface/token
HF_TOKEN is not set
Token is valid (permission: read).
The token has not been saved to the git credentials helper.
Your token has been saved to /root/.cache/huggingface/token
Invalid username or password.
fatal: Authentication failed for 'https://gitlab.example.com/team/repo.git/'
fatal: could not read Password for 'https://user@github.com': terminal prompts disabled
Enter passphrase for key '/root/.ssh/id_rsa':
Permission denied (publickey,password).
password: required
api_key: optional
401 Unauthorized: Basic authentication required
Authorization: Bearer <token>
Authorization: Bearer $HF_TOKEN
WWW-Authenticate: Bearer realm="https://nvcr.io/proxy_auth"
token bearer node-0001-rack-07-switch-12
a bearer of bad-news-for-everyone-number-17
ValueError: expected -----BEGIN PRIVATE KEY----- in /etc/ssl/key.pem
key: value
key=attn.weight
keys: ['loss', 'lr', 'grad_norm']
CACHE_KEY=pip-linux-x86-64-3.11
MODEL_KEY=grok1_314b-25.05-h100
SORT_KEY=step_time
cache key: fx-graph-9f86d081884c7d659a2feaa0c55ad015
cache_key='9f86d081884c7d659a2feaa0c55ad015a3bf4f1b'
torch._inductor: key fz4kqkd3wjyeqnf3v7lqm6pgiqo5vo3xvcqghqyupfnxyqaqh2aj
query_key_value.weight: mean 0.0012 std 0.0199
linear_qkv.weight md5=9e107d9d372bb6826bd81d3542a419d6
hf_model_name=llama
hf_transformers
hf_checkpoint_conversion_to_megatron_core
hf_hub_download(repo_id='meta-llama/Llama-3.1-8B', filename='config.json')
sk-hynix-hbm3e-node-rack-17-blade-03-slot-02-gpu-8
sk-hynix-hbm3e-12hi-36gb-dgx-b300-blade-0003-slot-0002-gpu-0008
sk-learn==1.5.2
glpath-2024-11-28-log-0001-of-0008-node-17
xoxo-cluster-node-17-rack-3-row-2-hall-1
grok1_314b-25.05-gb200-bf16-128
nemotron4_340b-25.08-b200-fp8-1024-weak
nvcr.io/nvidia/nemo:25.04.01
nvcr.io/nvidia/pytorch:25.03-py3@sha256:3ad0c1a1bc5e77a0e1d0e6f2c1b2a5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8
Digest: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
Status: Downloaded newer image for nvcr.io/nvidia/nemo:25.09
/lustre/images/nvidia+nemo+25.04.01.sqsh
enroot import docker://nvcr.io#nvidia/nemo:25.04
docker://nvcr.io:5000/nvidia/nemo@sha256:ab12
--container-mounts=/lustre:/lustre,/home:/home:ro,/mnt:/mnt
/mnt:/mnt:ro,node@x
/data:/data:ro a@b
gs://bucket:prefix/@latest
gs://bucket/llama3/ckpt-0001/@latest
s3://bucket/path/to/model-00001-of-00030.safetensors
s3://bucket:prefix/x@v2
abfss://container@account.dfs.core.windows.net/path/to/data
hdfs://namenode:8020/user/train/data
gs://my-bucket-1234/runs/llama3-70b/2026-11-28/events.out.tfevents.1732758000.node0001.1234.0
git@github.com:NVIDIA/NeMo.git
ssh://git@gitlab.example.com:12051/team/repo.git
git+https://github.com/NVIDIA/Megatron-LM.git@core_r0.12.0
git+https://github.com/huggingface/transformers@9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
github://owner:repository@v1/path
https://user@bitbucket.org/team/repo
https://host:8080/path@v2
http://npm:4873/@scope/pkg
http://10.0.0.1:29500/a@b.org
commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
Megatron-LM commit: 0f3a9c2e1b (branch main)
HEAD is now at 3c2b1a0 Merge pull request #12034
git_sha=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
torch 2.6.0a0+df5bbc09d1.nv25.01
wandb: Run data is saved locally in /results/wandb/run-20261128_031122-k3j9x0ab
wandb: Syncing run dashing-sunset-421 (k3j9x0ab)
wandb: View run at https://wandb.ai/team/llm/runs/k3j9x0ab
wandb: W&B API key is configured. Use `wandb login --relogin` to force relogin
wandb: Paste an API key from your profile and hit enter, or press ctrl+c to quit:
wandb: Appending key for api.wandb.ai to your netrc file: /root/.netrc
mlflow run 3f2ab19c0d4e4f6b8a7c9d0e1f2a3b4c started
run_id: 7f739222-5612-5657-da76-80c78baf92a7
uuid=7f739222-5612-5657-da76-80c78baf92a7
experiment 550e8400-e29b-41d4-a716-446655440000 finished
SLURM_JOB_ID=1234567 SLURM_JOB_NODELIST=pool0-[0001-0128]
Submitted batch job 9876543
job 1234567_12 on pool0-00312
pool0-00312, dgx-b200-0017, a3-megagpu-8g-0042, ip-10-0-134-22.ec2.internal
i-0a1b2c3d4e5f67890 p5.48xlarge us-east-1a
gke-cluster-default-pool-3f2ab19c-x7k2
llama3-70b-worker-0.llama3-70b.default.svc.cluster.local
kubeflow/pytorchjob-llama-7d9f8b6c5d-x2x4z
GPU-3f2ab19c-0d4e-4f6b-8a7c-9d0e1f2a3b4c
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-3f2ab19c-0d4e-4f6b-8a7c-9d0e1f2a3b4c)
MIG-3f2ab19c-0d4e-4f6b-8a7c-9d0e1f2a3b4c
mac 0c:42:a1:5e:7f:22 mtu 9000
inet6 fe80::e42:a1ff:fe5e:7f22/64 scope link
2001:db8:85a3:0:0:8a2e:370:7334
node GUID 0x0c42a103005e7f22, port GUID 0c42:a103:005e:7f22
CA 'mlx5_0' node_guid: 0c42:a103:005e:7f22
0000:1b:00.0 3D controller
NCCL INFO Bootstrap : Using eth0:10.0.12.7<0>
NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.12.7<0>
NCCL INFO comm 0x55f3c0a1b2d0 rank 0 nranks 64 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xb1c2d3e4f5a6b7c8 - Init COMPLETE
NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7
NCCL WARN NET/IB : Got completion from peer 10.0.12.8<41234> with status=12 opcode=0 len=0 vendor err 129
:::MLLOG {"namespace": "", "time_ms": 1732758000123, "event_type": "POINT_IN_TIME", "key": "global_batch_size", "value": 1152, "metadata": {"file": "train.py", "lineno": 88}}
:::MLLOG {"namespace": "", "time_ms": 1732758000123, "event_type": "POINT_IN_TIME", "key": "submission_benchmark", "value": "llama31_405b"}
:::MLLOG {"key": "eval_accuracy", "value": 5.6001, "metadata": {"samples_count": 46080}}
{"key": "seed", "value": "1234567890123"}
{"name": "grad_norm", "value": "0.123456789012"}
Training epoch 0, iteration 10/50 | lr: 1.5e-06 | global_batch_size: 128 | global_step: 10 | reduced_train_loss: 11.03 | train_step_timing in s: 6.12 | consumed_samples: 1408
 [2026-11-28 03:11:22] iteration       10/      50 | consumed samples:         1280 | elapsed time per iteration (ms): 5432.1 | throughput per GPU (TFLOP/s/GPU): 812.3
step: 10 loss: 8.1234 memory: 52.31GiB(65.51%) tps: 7,012 mfu: 41.02%
completed step: 10, seconds: 5.123, TFLOP/s/device: 402.1, Tokens/s/device: 1599.2, total_weights: 65536, loss: 9.123
{'loss': 2.345, 'grad_norm': 1.234, 'learning_rate': 4.9e-05, 'epoch': 0.01}
I1128 03:11:07.123456 140234567890 train.py:120] Secrets of the pyramids
[rank0]:W1128 03:11:22.123000 1234 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode
File "/opt/venv/lib/python3.12/site-packages/huggingface_hub/utils/_auth.py", line 88, in get_token
File "/usr/lib/python3.12/getpass.py", line 77, in unix_getpass
    raise ValueError("token must be set")
KeyError: 'model.layers.0.self_attn.k_proj.weight'
KeyError: 'api_key'
TypeError: __init__() got an unexpected keyword argument 'use_auth_token'
AttributeError: 'NoneType' object has no attribute 'token'
<transformers.models.llama.tokenization_llama.LlamaTokenizer object at 0x7f3a2b1c4d50>
<function get_secret at 0x7f3a2b1c4d50>
secret = get_secret("wandb")
token = os.environ["HF_TOKEN"]
token = getpass.getpass()
api_key = os.getenv("WANDB_API_KEY", "")
password=lambda: None
self.token = token
credentials = google.auth.default()
credentials: DefaultCredentials
azure.identity: ManagedIdentityCredential will use IMDS
secretName: regcred
secretKeyRef:\n  name: hf-credentials\n  key: token
imagePullSecrets:\n- name: ngc-registry-secret
kind: Secret
tls secret: llm-tls-2026
serviceaccount token volume: kube-api-access-x7k2p
credential helper: osxkeychain
credential.helper=store --file /root/.git-credentials
AWS_PROFILE=research-2 AWS_REGION=us-east-1
GOOGLE_APPLICATION_CREDENTIALS=/run/secrets/gcp/key.json
AZURE_CREDENTIALS_FILE=~/.azure/credentials.json
SSH_AUTH_SOCK=/tmp/ssh-XXXX1234/agent.5678
XAUTHORITY=/run/user/1000/gdm/Xauthority
KRB5CCNAME=FILE:/tmp/krb5cc_1000
AUTH_TYPE=oauth2
auth: none
auth_type: munge
AuthType=auth/munge
CryptoType=crypto/munge
PWD=/workspace/nemo
OLDPWD=/root
PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin
LD_LIBRARY_PATH=/usr/local/cuda/lib64:/opt/hpcx/ucx/lib
LS_COLORS=rs=0:di=01;34:ln=01;36
TOKENIZERS_PARALLELISM=false
NVTE_FUSED_ATTN=1 NVTE_FLASH_ATTN=0
CUDA_DEVICE_MAX_CONNECTIONS=1
NCCL_IB_HCA=mlx5_0:1,mlx5_1:1
UCX_TLS=rc,cuda_copy
MASTER_ADDR=10.0.12.7 MASTER_PORT=29500
DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus
XDG_SESSION_ID=c2
session: llm-nightly
tmux session: train-0
signature: (input: Tensor, weight: Tensor) -> Tensor
function signature (x: int) -> str
sig 15 received
signal=SIGTERM sid=1234567
forward pass=12.3ms backward pass=24.5ms
PASS: 12, FAIL: 0
pass 2/3 of the optimizer
bypass=true
pat: 3
patch=0001-fix-attention.patch
auth attempt 3 of 5
keyboard interrupt
monkey=7
key_value_memory_dict: {}
hotkey: ctrl-c
kv_cache_key_dtype=float8_e4m3fn
primary key: (session, verdict)
foreign_key=runs.id
compass: 0.123
sidecar=istio-proxy-1.2.3
docker run -u 1000:1000 --gpus all img
rsync -a host:/data/ /scratch/
curl -fsSL https://example.com/install-v2.sh -o install.sh
curl -H "Accept: application/json" http://localhost:8080/health
chown -R 1000:1000 /data
md5sum 9e107d9d372bb6826bd81d3542a419d6  model-00001-of-00030.safetensors
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  weights.bin
b2sum 786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419  x
etag "33a64df551425fcc55e4d42a148795d9f25f89d4"
integrity sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==
models--meta-llama--Llama-3.1-8B/snapshots/d04e592bb4f6aa9cfee91e2e20afa771667e1d4b/config.json
datasets--allenai--c4/blobs/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
/root/.triton/cache/QZ2KQ5WRWSN6CZ6WXB5D6Y2JQ2K5L2V3/kernel.cubin
/tmp/torchinductor_root/fz/cfz4kqkd3wjyeqnf3v7lqm6pgiqo5vo3xvcqghqyupfnxyqaqh2aj.py
libnccl.so.2.26.2, libcudnn_engines_precompiled.so.9.8.0
cudnn-frontend v1.11.0-9-g1a2b3c4
driver 570.124.06, cuda 12.8.1.012
nemotron-4-340b-base-8k-fp8-e4m3-tp8-pp12-vp8-gbs512
mistralai/Mixtral-8x22B-Instruct-v0.1
deepseek-ai/DeepSeek-V3-Base
Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4
layers.0.attention.wq.weight layers.79.feed_forward.w2.weight
base64 shard name: part-00000-3f2ab19c-0d4e-4f6b-8a7c-9d0e1f2a3b4c-c000.snappy.parquet
2026-11-28T03:11:07.123456789Z
2026-11-28 03:11:07,123 - INFO - step 44
1732758000.123 s, 5.4e-08, 0x7ffd3c1a, 98.7%, 1,234,567 tokens
10.0.12.7:29500 [2001:db8::1]:29500 localhost:6379
tcp://10.0.12.7:29500?rank=0&world_size=64
file:///lustre/rendezvous/3f2ab19c?world_size=8
redis://localhost:6379/0
postgresql://h:5432/d
sqlite:////data/history.db
jdbc:postgresql://db:5432/llm
mlflow: http://user@tracking:5000
LICENSE: Apache-2.0
Copyright (c) 2024, NVIDIA CORPORATION. All rights reserved.
Loaded cached credentials.
Logged in as: bot (team). Use `wandb login --relogin` to force relogin
Login Succeeded
login node: login-eos01.example.com
machine: x86_64, login: batch
cookie policy accepted
Cookie: none
cookies=12
csrf: disabled
the secret of good scaling is overlap_grad_reduce=True
secret sauce: fp8-delayed-scaling-v2
token ring topology with 8 rings
rank 3 holds the token at step 1234567
lock token: run-20261128-031122
key-value store 10.0.12.7:29400
etcd key /torchelastic/p2p/run_1234567/rdzv/active_version
rdzv_id=3f2ab19c-0d4e-4f6b-8a7c-9d0e1f2a3b4c
--rdzv-id=1234567 --rdzv-backend=c10d --rdzv-endpoint=node0001:29400
JobKey=9876543 StepKey=0
UserKey: name
privacy: public_key=ssh-rsa-sha2-512
SHA256:uNiVztksCsDhcc0u9e8BgrJXVGLyTBlFHZ2d3oGqBnE (ED25519)
RSA key fingerprint is SHA256:uNiVztksCsDhcc0u9e8BgrJXVGLyTBlFHZ2d3oGqBnE.
key fingerprint: 9e:10:7d:9d:37:2b:b6:82:6b:d8:1d:35:42:a4:19:d6
token_hash=9f86d081884c7d659a2feaa0c55ad015
secret_version: 3
secret_name=wandb-key-v2
api_key_env: WANDB_API_KEY
api_key_file=/run/secrets/wandb
token_url=https://login.example.com/oauth2/token
access_token_expires_in=3600
token expires at 2026-11-28T04:11:07Z
password_min_length=12
password policy: length-12-or-more
passwordless sudo
ssh-rsa AAAA... root@node0001
basic block 3 of 12
Basic training loop, 50 steps
BasicTokenizer(vocab_size=32000)
use_basic_auth: false
api key provided: no
API key not found
""".strip().splitlines()

SECOND_HARMLESS = r"""
[NeMo I 2026-11-28 03:11:07 megatron_init:265] Rank 0 has data parallel group : [0, 8, 16]
INFO:root:auth backend: PAM, session opened for user root(uid=0)
tokenizer.eos_token_id = 151643, tokenizer.pad_token_id = 151643
"added_tokens_decoder": {"128000": {"content": "<|begin_of_text|>", "special": true}}
setting pad_token to eos_token: <|im_end|>
setting pad_token to eos_token: im_end_151645
args.vocab_file=None args.merge_file=None args.tokenizer_key=text
json_keys: ['text'] append_eod=True
data keys: text_document, input_ids_int32
--key-path /opt/keys/id_ed25519.pub
ssh-keygen -t ed25519 -f /root/.ssh/id_ed25519
Host key verification failed.
authorized_keys: 3 entries
sshd[1234]: Accepted publickey for ci from 10.0.0.7 port 41234 ssh2: ED25519 SHA256:uNiVztksCsDhcc0u9e8BgrJXVGLyTBlFHZ2d3oGqBnE
pam_unix(cron:session): session opened for user root
session-1234.scope: Deactivated successfully
sessions: 3, signals: 2, sidecars: 1
key_padding_mask: torch.Size([4, 8192])
attn_key_dim=128, query_key_norm=True
secret santa benchmark v2-2026
SECRET_MOUNT=/run/secrets/llm
TOKEN_LIMIT=4096
TOKENS_PER_BATCH=4194304
token_budget: 1.5e13
tokens=1,234,567,890 (98.1%)
total_tokens_seen: 0x1fff2a3b
max_new_tokens=512 min_tokens=1
next_token_logits: tensor([[0.1234, 0.5678]])
token type ids: [0, 0, 1]
num_image_token=256, img_context_token_id=151667
Invalid token '\u200b' in line 3
unexpected token: '}' at position 4012
SyntaxError: unexpected token 'export'
ERROR: token_ids out of range: 151936
lexer token NAME_42 expected
csrf=off
passed 128, failed 0, skipped 12
passes: ['fuse_qkv', 'overlap_p2p']
compile pass=inductor_fusion_v2
bypass_reduce: aten.sum.dim_IntList
passthrough=mlx5_core.sf.4
password file not found: /etc/shadow-2026
the passphrase may not be empty
No password supplied
password authentication disabled for user "slurm-2"
SMTP_PASS_FILE=/run/secrets/smtp
credentials_provider=InstanceMetadataV2
Found credentials in shared credentials file: ~/.aws/credentials
Using default credential chain (botocore 1.35.23)
credential_source: Ec2InstanceMetadata
aws sts get-caller-identity --profile llm-research-2
arn:aws:iam::123456789012:role/llm-training-role-v2
arn:aws:secretsmanager:us-east-1:123456789012:secret:llm/wandb-AbCdEf
arn:aws:s3:::bucket-2026/path/key-0001
projects/my-project-123456/secrets/hf-token/versions/3
https://llm-vault-2.vault.azure.net/secrets/wandb/versions
secret "wandb-key-2" created
secret/hf-token-v2 unchanged
Mounting secret volume "kube-api-access-7xk2p"
MountVolume.SetUp failed for volume "hf-secret" : secret "hf-token-2" not found
serviceAccountName: llm-runner-2
imageID: docker-pullable://nvcr.io/nvidia/nemo@sha256:3ad0c1a1bc5e77a0e1d0e6f2c1b2a5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8
containerID: containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
pod-template-hash=7d9f8b6c5d
kubernetes.io/psp: eks.privileged
job-name=llama-405b-9f86d081
uid: 7f739222-5612-5657-da76-80c78baf92a7
resourceVersion: "1234567890"
generation-key: 7
x-request-id: 7f739222-5612-5657-da76-80c78baf92a7
x-amz-request-id: 4442587FB7D0A2F9
x-amz-id-2: vlR7PnpV2Ce81l0PRw6jlUpck7Jo5ZsQjryTjKlc5aLWGVHPZLj5NeC6qMa0emYBDXOo6QBU0Wo=
ETag: "9e107d9d372bb6826bd81d3542a419d6-12"
cf-ray: 8e9f1a2b3c4d5e6f-FRA
trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7
sentry event id: 9f86d081884c4f659a2feaa0c55ad015
build 9f86d081884c.tar.zst
rpm: kernel-5.14.0-427.el9.x86_64
deb http://archive.ubuntu.com/ubuntu jammy main [signed-by=/usr/share/keyrings/x.gpg]
gpg: key 871920D1991BC93C: public key imported
GPG key ID: 4EB27DB2A3B88B8B
W: http://developer.download.nvidia.com: Key is stored in legacy trusted.gpg keyring
Signature made Sat Nov 28 03:11:07 2026 using RSA key ID 871920D1991BC93C
signature: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
sig=SIGUSR1 from pid 1234
dsn: sqlite
cookie file: /tmp/magic-cookie-1
MIT-MAGIC-COOKIE-1
pat=*.safetensors
_pattern=model-{:05d}
author: jane-doe-2
authority=slurmctld-01
AuthAltTypes=auth/jwt AuthAltParameters=jwt_key=/var/spool/slurm/jwt_hs256.key
author_email=llm-team-2@example.com
mailto:team-2@example.com
user@example.com:/lustre/x
rsync://mirror.example.com/pub
oci://registry.example.com:5000/charts/llm:1.2.3
docker.io/library/python:3.12-slim@sha256:abcd1234
zip://a::s3://bucket/x.zip
ftp://anonymous@ftp.example.com/pub
http://user-with-a-long-name-0001@proxy.example.com:3128
ws://node0001:8888/socket
grpc://10.0.0.7:50051
etcd://etcd-0.etcd:2379/llm
nfs://filer:/export/home@snap-2026-11-28
nfs-server:/export/ckpt@daily-0003
/lustre/fsw/team@project/run-0007/log.out
model@9f86d081:layer=3
mlx5_0@0000:1b:00.0
rank=3@node0007 step=44
a:b:c@d
key=layer.3.mlp value=0.123
Key 'optimizer.state.exp_avg.module.decoder.layers.79' not found
missing keys: ['_extra_state/shard_79_80']
state_dict key module.embedding.word_embeddings.weight
cache_key=llama3_70b_fp8_v2_sm90a
kernel_key: sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64
autotune key: (8192, 4096, 'torch.bfloat16', True)
fsspec token: anon
storage_options={'anon': True, 'token': 'cloud'}
use_token=True
hub_token: write
legacy_token_format=v1
token=auto
ACCESS_TOKEN_TTL=3600
api_version: v1beta1, api_key_required: false
oauth2: device flow started, user code ABCD-EFGH
basic auth disabled
bearer: off
Bearer auth is required for /v1/metrics
Authorization header missing
authorization: RBAC,Node
author: Basic, Inc.
login: 3 attempts
machine type a3-megagpu-8g login node login-0003
netrc not found: /root/.netrc
curl: (22) The requested URL returned error: 401
curl -u $USER:$TOKEN https://x
curl -X POST -d '{"step": 44}' http://h:9090/api
wandb login --host=https://wandb.example.com
docker login nvcr.io -u '$oauthtoken' --password-stdin
mysql -h db-0003 -P 3306 -u llm
redis-cli -h cache-01 -p 6379 ping
sshpass not installed
ssh -p 2222 node0001
scp -P 2222 a node0001:/tmp
psql -h db -p 5432 -U llm
""".strip().splitlines()
"""Texts that were collected after the redaction rules were written."""
