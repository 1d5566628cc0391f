"""Log texts that contain a secret.

All secrets are drawn at run time: no file of this repository contains a text in the
form of a token.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Callable, Iterator
from random import Random

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
BASE64 = LETTERS + "+/"
URL_SAFE = LETTERS + "-_"
UPPER = string.ascii_uppercase + "234567"


def draw(random: Random, alphabet: str, size: int) -> str:
    """Draw a random text that contains a digit."""
    text = "".join(random.choices(alphabet, k=size - 1))
    return text + random.choice("234567")


NOTATIONS = """\
environ({{'PATH': '/usr/bin', 'WANDB_API_KEY': '{v}', 'HOME': '/root'}})
os.environ: {{"HF_TOKEN": "{v}", "SHLVL": "1"}}
{{"wandb": {{"api_key": "{v}", "project": "llm"}}}}
{{\\"hf_token\\": \\"{v}\\", \\"rank\\": 3}}
"{{\\\\\\"api_key\\\\\\":\\\\\\"{v}\\\\\\"}}"
[('LANG', 'C'), ('NGC_API_KEY', '{v}')]
[["HF_TOKEN", "{v}"], ["A", "1"]]
b'AWS_SECRET_ACCESS_KEY': b'{v}'
WANDB_API_KEY={v}
export HF_TOKEN={v}
+ export HF_TOKEN={v}
++ COMET_API_KEY='{v}'
declare -x NGC_API_KEY="{v}"
setenv MLFLOW_TRACKING_TOKEN {v}
ENV HF_TOKEN={v}
ENV HF_TOKEN {v}
Step 4/9 : ARG GITLAB_TOKEN={v}
docker run --gpus all -e WANDB_API_KEY={v} nemo:25.04
docker run --env "HF_TOKEN={v}" --rm img
srun --export=ALL,HF_TOKEN={v},NCCL_DEBUG=INFO ./run.sh
sbatch --export=NONE,WANDB_API_KEY={v} job.sh
$env:HF_TOKEN = "{v}"
set AZURE_CLIENT_SECRET={v}
wandb_api_key: {v}
  api_key: "{v}"
  api_key: '{v}'
wandb_api_key = {v}
aws_secret_access_key = {v}
aws_secret_access_key={v}
password = {v}
token = '{v}'
api-key = "{v}"
train.py --wandb-api-key {v} --lr 1e-4
train.py --wandb-api-key={v} --lr 1e-4
train.py --wandb-key {v} --lr 1e-4
Namespace(lr=0.1, wandb_key='{v}', steps=50)
wandb.key={v}
python main.py --hf_token {v}
python main.py --token "{v}"
java -Dapi.token={v} -jar x.jar
python train.py ++logger.wandb.api_key={v} trainer.max_steps=50
python train.py +env.HF_TOKEN={v}
Namespace(lr=0.1, hf_token='{v}', seed=1)
Config(api_key="{v}", steps=50)
TrainingArguments(hub_token={v}, seed=42)
{{'hub_token': '{v}', 'seed': 42}}
DictConfig({{'wandb': {{'apiKey': '{v}'}}}})
clientSecret: {v}
"clientSecret" : "{v}",
"accessToken":"{v}"
"secretAccessKey": "{v}"
"SessionToken": "{v}",
<Password>{v}</Password>
<add key="ApiKey" value="{v}" />
{{"name": "HF_TOKEN", "value": "{v}"}}
- name: WANDB_API_KEY\\n  value: {v}
  HF_TOKEN:  {v}
| HF_TOKEN | {v} |
│ WANDB_API_KEY │ {v} │
HF_TOKEN\t{v}
WANDB_API_KEY -> {v}
'api_key' => '{v}',
api_key := {v}
os.environ["HF_TOKEN"] = "{v}"
config['api_key'] = '{v}'
getenv(HF_TOKEN) -> '{v}'
Authorization: Bearer {v}
Authorization: Token {v}
Authorization: token {v}
authorization: {v}
'Authorization': 'Bearer {v}'
{{"Authorization": "Token {v}"}}
('authorization', 'Bearer {v}')
Proxy-Authorization: Bearer {v}
X-Api-Key: {v}
x-api-key={v}
PRIVATE-TOKEN: {v}
JOB-TOKEN: {v}
X-Auth-Token: {v}
X-Vault-Token: {v}
curl -H "PRIVATE-TOKEN: {v}" https://gitlab.example.com/api/v4/projects
curl -H 'X-Api-Key: {v}' https://host/v1
curl --header "Authorization: Bearer {v}" https://host
> Authorization: Bearer {v}
send: b'GET / HTTP/1.1\\r\\nAuthorization: Bearer {v}\\r\\nHost: h'
DEBUG:urllib3: headers={{'X-Goog-Api-Key': '{v}'}}
Cookie: session={v}; theme=dark
Set-Cookie: sessionid={v}; Path=/; HttpOnly
curl -u admin:{v} https://host/artifactory
curl -fsSu ci-bot:{v} https://host
curl --user 'bot:{v}' https://host
wget --user=bot --password={v} https://host/x
git clone https://oauth2:{v}@gitlab.example.com/team/repo.git
git clone https://{v}@github.com/team/repo.git
fatal: unable to access 'https://{v}@github.com/team/repo.git/': 403
remote: https://{v}:x-oauth-basic@github.com/team/repo
pip install --index-url https://ci:{v}@pypi.example.com/simple nemo
Looking in indexes: https://__token__:{v}@pypi.example.com/simple
https://storage.example.com/x?X-Amz-Signature={v}&X-Amz-Date=20260101
https://account.blob.core.windows.net/c/x?sv=2024&sig={v}
https://host/api?access_token={v}
https://host/api?n=1&api_key={v}
wss://host/ws?token={v}
postgresql://user:{v}@db:5432/llm
redis://:{v}@cache:6379/0
mongodb+srv://u:{v}@cluster0.example.net
amqp://guest:{v}@mq//
DefaultEndpointsProtocol=https;AccountName=x;AccountKey={v};EndpointSuffix=core.windows.net
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={v}
Server=db;Database=llm;User Id=sa;Password={v};
Server=db;Uid=sa;Pwd={v};Encrypt=yes
host=db user=llm password={v} dbname=llm
machine api.wandb.ai login user password {v}
machine github.com\\n  login bot\\n  password {v}
  password {v}
db.example.com:5432:llm:postgres:{v}
*:*:*:llm:{v}
PGPASSWORD={v} psql -h db
sshpass -p {v} ssh node01
sshpass -p '{v}' scp a b:
mysql -u root -p{v} -e 'select 1'
redis-cli -h cache -a {v} ping
docker login -u bot -p {v} registry.example.com
az login --service-principal -u 3f2b -p {v} --tenant t
wandb login {v}
wandb login --relogin {v}
huggingface-cli login --token {v}
hf auth login --token {v}
ngc config set --apikey {v}
aws configure set aws_secret_access_key {v}
kubectl create secret generic x --from-literal=password={v}
helm upgrade x --set auth.password={v}
docker build --build-arg HF_TOKEN={v} .
openssl rsa -passin pass:{v} -in key.pem
//registry.npmjs.org/:_authToken={v}
_authToken = {v}
"auth": "{v}"
"identitytoken": "{v}"
kind: Secret\\ndata:\\n  password: {v}
stringData:\\n  token: {v}
env:\\n- name: AWS_SECRET_ACCESS_KEY\\n  value: "{v}"
AWS_SESSION_TOKEN="{v}"
TF_VAR_db_password = "{v}"
tracking_password: {v}
db_password='{v}'
DB_PASSWORD: "{v}"
MINIO_SECRET_KEY={v}
SMTP_PASS={v}
S3_SECRET={v}
JWT_SECRET: {v}
DJANGO_SECRET_KEY = '{v}'
ENCRYPTION_KEY={v}
SSH_PRIVATE_KEY={v}
LICENSE_KEY: {v}
GH_PAT={v}
RuntimeError: invalid token '{v}'
ValueError: API key {v} is not valid
wandb.errors.AuthenticationError: API key: {v}
401 Client Error: token {v} was revoked
    token = '{v}'
    headers = {{'Authorization': 'Bearer {v}'}}
[2026-11-28 03:11:07] INFO  config: hf_token={v}
0: api_key={v}
[rank3]: HF_TOKEN={v}
os.putenv('HF_TOKEN', '{v}')
login(token="{v}")
wandb.login(key='{v}')
boto3.client('s3', aws_secret_access_key='{v}')
msg="using credentials" secret={v} level=info
{{"level":"info","msg":"x","token":"{v}"}}
env | grep TOKEN: HF_TOKEN={v}
HF_TOKEN : {v}
HF_TOKEN='{v}' torchrun train.py
env HF_TOKEN={v} WANDB_MODE=online python t.py
ssh node1 "HF_TOKEN={v} ./run.sh"
&quot;api_key&quot;: &quot;{v}&quot;
name: token value: {v}
""".splitlines()
"""Notations of a name with its value in logs. {v} is the value."""


def list_values(random: Random) -> Iterator[str]:
    """Yield values in the forms of common secret generators."""
    while True:
        yield draw(random, HEX, 40)
        yield draw(random, LETTERS, 32)
        yield "/" + draw(random, BASE64, 39)
        yield draw(random, BASE64, 43) + "="
        yield draw(random, URL_SAFE, 43)
        yield "-".join(draw(random, HEX, size) for size in (8, 4, 4, 4, 12))


def list_assigned(seed: int = 7) -> list[tuple[str, str]]:
    """Return (text, secret) for each notation, with two values each."""
    random = Random(seed)
    values = list_values(random)
    texts = []
    for notation in NOTATIONS:
        for _ in range(2):
            value = next(values)
            while "{v}@" in notation and not set("/+").isdisjoint(
                value
            ):  # a URL would quote these characters
                value = next(values)
            texts.append(
                (
                    notation.replace("\\n", "\n").replace("\\t", "\t").format(v=value),
                    value,
                )
            )
    return texts


def list_tokens(seed: int = 8) -> list[tuple[str, str]]:
    """Return (text, secret) for each token form, in varying contexts without a
    revealing name."""
    random = Random(seed)

    def letters(size: int) -> str:
        return draw(random, LETTERS, size)

    def lower(size: int) -> str:
        return draw(random, string.ascii_lowercase + string.digits, size)

    def digits(size: int) -> str:
        return "".join(random.choices(string.digits, k=size))

    def safe(size: int) -> str:
        return draw(random, URL_SAFE, size)

    def hexadecimal(size: int) -> str:
        return draw(random, HEX, size)

    jwt = ".".join("e" + "yJ" + letters(30) for _ in range(2)) + "." + safe(43)
    forms = [
        "h" + "f_" + letters(34), "gh" + "p_" + letters(36), "gh" + "o_" + letters(36), "gh" + "s_" + letters(36),
        "github" + "_pat_" + letters(22) + "_" + letters(59), "gl" + "pat-" + safe(20), "gl" + "rt-" + safe(20),
        "gl" + "cbt-1a_" + safe(20), "gl" + "dt-" + safe(20), "gl" + "ptt-" + hexadecimal(40), "gl" + "ft-" + safe(20),
        "gl" + "agent-" + safe(50), "gl" + "soat-" + safe(20), "gl" + "pat-" + letters(27) + ".01." + lower(9),
        "gl" + "rt-t1_" + letters(27) + ".01." + lower(9), "GR13" + "48941" + safe(20),
        "nv" + "api-" + safe(64), "s" + "k-" + letters(32), "s" + "k-" + letters(48), "s" + "k-proj-" + safe(120),
        "s" + "k-ant-api03-" + safe(93) + "AA", "s" + "k-or-v1-" + hexadecimal(64),
        "xo" + "xb-" + digits(12) + "-" + digits(12) + "-" + letters(24), "xa" + "pp-1-A0" + digits(9) + "-" + digits(13) + "-" + hexadecimal(64),
        "hooks.sl" + "ack.com/services/T0" + digits(8) + "/B0" + digits(8) + "/" + letters(24),
        "AK" + "IA" + "".join(random.choices(UPPER, k=16)), "AS" + "IA" + "".join(random.choices(UPPER, k=16)),
        "AB" + "SK" + letters(120), jwt, "ya" + "29." + safe(100), "AI" + "za" + safe(35), "GOC" + "SPX-" + safe(28),
        "np" + "m_" + letters(36), "py" + "pi-AgEIcHlwaS5vcmc" + safe(90), "dck" + "r_pat_" + safe(27), "hv" + "s." + safe(92),
        "hv" + "b." + safe(140), "da" + "pi" + hexadecimal(32), "gs" + "k_" + letters(52), "r8" + "_" + letters(37),
        "pp" + "lx-" + letters(48), "x" + "ai-" + letters(80), "pc" + "sk_" + letters(60), "ls" + "v2_pt_" + hexadecimal(32) + "_" + hexadecimal(10),
        "SG" + "." + safe(22) + "." + safe(43), "do" + "p_v1_" + hexadecimal(64), "sk" + "_live_" + letters(24), "AG" + "E-SECRET-KEY-1" + "".join(random.choices("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", k=58)),
        "gl" + "sa_" + letters(32) + "_" + hexadecimal(8), "PM" + "AK-" + hexadecimal(24) + "-" + hexadecimal(34), "pu" + "l-" + hexadecimal(40),
        "ts" + "key-auth-" + letters(16) + "-" + letters(32), "wan" + "db_v1_" + letters(70), "LT" + "AI" + letters(20),
        "sha" + "256~" + safe(43), digits(10) + ":A" + "A" + safe(33), letters(3) + "8Q" + "~" + letters(34),
        "lin" + "_api_" + letters(40), "sh" + "pat_" + hexadecimal(32), "ru" + "bygems_" + hexadecimal(48), "hv" + "s." + letters(24),
    ]  # fmt: skip
    contexts = [
        "RuntimeError: refused: {v}",
        "cannot use {v}, try another",
        "args: ['--x', '{v}']",
        '{{"x": "{v}"}}',
        "see ({v}) for it",
        "x={v};y=1",
        "url {v}/path",
        "value: {v}.",
    ]
    return [
        (contexts[index % len(contexts)].format(v=form), form.rpartition("/")[2])
        for index, form in enumerate(forms)
    ]


def list_blocks(seed: int = 9) -> list[tuple[str, str]]:
    """Return (text, one line of the key) for private keys in files, JSON and logs."""
    random = Random(seed)
    texts = []
    for kind in (
        "OPENSSH PRIVATE",
        "RSA PRIVATE",
        "PRIVATE",
        "EC PRIVATE",
        "PGP PRIVATE",
    ):
        lines = [draw(random, BASE64, 64) for _ in range(4)]
        end = "KEY BLOCK-----" if kind.startswith("PGP") else "KEY-----"
        begin, close = f"-----BEGIN {kind} {end}", f"-----END {kind} {end}"
        for joint in ("\n", "\\n", "\\\\n", " "):
            texts.append((f"key: {joint.join([begin, *lines, close])} after", lines[2]))
        texts.append(("\n".join([begin, *lines[:3]]), lines[1]))  # cut
    return texts


def list_basic(seed: int = 10) -> list[tuple[str, str]]:
    """Return (text, secret) with Base64-encoded user names and passwords."""
    random = Random(seed)
    texts = []
    for context in ("Authorization: Basic {v}", "{{'Authorization': 'Basic {v}'}}", "Proxy-Authorization: Basic {v}", "git -c http.extraheader='AUTHORIZATION: basic {v}' fetch", '{{"auths": {{"nvcr.io": {{"auth": "{v}"}}}}}}'):  # fmt: skip
        value = base64.b64encode(f"user:{draw(random, LETTERS, 12)}".encode()).decode()
        texts.append((context.format(v=value), value))
    return texts


def list_second(seed: int = 99) -> list[tuple[str, str]]:
    """Return (text, secret) for texts collected after the redaction rules were written.

    Three of these secrets are not redacted.
    """
    random = Random(seed)

    def hex40() -> str:
        return draw(random, HEX, 40)

    def letters16() -> str:
        return draw(random, LETTERS, 16)

    def letters20() -> str:
        return draw(random, LETTERS, 20)

    def letters32() -> str:
        return draw(random, LETTERS, 32)

    def safe43() -> str:
        return draw(random, URL_SAFE, 43)

    contexts: list[tuple[str, Callable[[], str]]] = [
        ("ClearML: CLEARML_API_SECRET_KEY: {v}", letters32),
        ("os.environ['NEPTUNE_API_TOKEN']={v}", safe43),
        ('api.secret_key: "{v}"', letters32),
        ('task.connect({{"credentials": {{"access_key": "{v}"}}}})', letters20),
        ("OmegaConf: secrets:\n  wandb: {v}\n", hex40),
        ("DEBUG botocore.auth Signature:\n{v}", lambda: draw(random, HEX, 64)),
        ("x-amz-security-token:{v}", lambda: draw(random, BASE64, 200)),
        (
            "AWS4-HMAC-SHA256 Credential=X/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature={v}",
            lambda: draw(random, HEX, 64),
        ),
        (
            'azcopy copy "https://acc.blob.core.windows.net/c?sv=2022-11-02&ss=b&sig={v}%3D"',
            lambda: draw(random, LETTERS, 43),
        ),
        ("rclone: pass = {v}", letters32),
        (
            "[s3]\naccess_key = AKX\nsecret_key = {v}\n",
            lambda: draw(random, BASE64, 40),
        ),
        ("mc alias set minio http://minio:9000 admin {v}", letters16),
        ("s3cmd --access_key=x --secret_key={v} ls", lambda: draw(random, BASE64, 40)),
        ("smbclient -U user%{v}", letters16),
        ("kubectl --token={v} get pods", lambda: draw(random, URL_SAFE, 100)),
        ("    token: {v}\n  user: x", lambda: draw(random, URL_SAFE, 60)),
        ("  client-key-data: {v}", lambda: draw(random, BASE64, 88)),
        (".dockerconfigjson: {v}", lambda: draw(random, BASE64, 120)),
        ("podman login -u x -p {v} quay.io", letters16),
        ("skopeo copy --src-creds=bot:{v} docker://a docker://b", letters16),
        ("apptainer pull --docker-login user pw={v}", letters16),
        (
            "enroot: machine nvcr.io login $oauthtoken password {v}",
            lambda: draw(random, BASE64, 84),
        ),
        ("NGC_CLI_API_KEY: {v}", lambda: draw(random, BASE64, 84)),
        ("ngc: API key set to {v}", lambda: draw(random, BASE64, 84)),
        ("slurmrestd: X-SLURM-USER-TOKEN: {v}", lambda: draw(random, URL_SAFE, 80)),
        ("SLURM_JWT={v}", lambda: draw(random, URL_SAFE, 80)),
        (
            "scontrol token lifespan=3600\nSLURM_JWT={v}",
            lambda: draw(random, URL_SAFE, 90),
        ),
        ("munge key: {v}", lambda: draw(random, BASE64, 60)),
        ("ray start --redis-password={v}", letters16),
        ("Jupyter: http://node1:8888/lab?token={v}", lambda: draw(random, HEX, 48)),
        ("tensorboard http://h:6006/?auth_token={v}", letters32),
        ("sacred: mongo_url=mongodb://u:{v}@m:27017/db?authSource=admin", letters16),
        (
            "dvc remote modify --local s3 secret_access_key {v}",
            lambda: draw(random, BASE64, 40),
        ),
        (
            "git remote set-url origin https://user:{v}@dev.azure.com/o/p",
            lambda: draw(random, "abcdefghijklmnopqrstuvwxyz234567", 52),
        ),
        ("svn --username bot --password {v} co", letters16),
        (
            "pip config set global.index-url https://aws:{v}@d.codeartifact.us-east-1.amazonaws.com/pypi/x/simple/",
            lambda: draw(random, URL_SAFE, 300),
        ),
        (
            "conda config --set channel_alias https://conda.anaconda.org/t/{v}/team",
            lambda: "xx-" + draw(random, HEX, 8) + "-" + draw(random, HEX, 4),
        ),
        ("UV_INDEX_PRIVATE_PASSWORD={v}", letters20),
        ("POETRY_HTTP_BASIC_X_PASSWORD={v}", letters20),
        (
            "twine upload -u __token__ -p {v} dist/*",
            lambda: "py" + "pi-AgEIcHlwaS5vcmc" + draw(random, URL_SAFE, 100),
        ),
        (
            "OPENAI_API_KEY: '{v}'",
            lambda: "s" + "k-proj-" + draw(random, URL_SAFE, 100),
        ),
        (
            "telegram.error: bot{v} not found",
            lambda: "1234567890:A" + "A" + draw(random, URL_SAFE, 33),
        ),
        ('smtp.login("me", "{v}")', letters16),
        ("msmtprc password {v}", letters16),
        (
            "Traceback: requests.exceptions.HTTPError: 401 for url: https://api.x.com/v1/x?apikey={v}",
            letters32,
        ),
        (
            'pydantic: Settings(db_url=PostgresDsn("postgresql://llm:{v}@db/llm"))',
            letters16,
        ),
        ('"connectionString": "Server=tcp:x,1433;User ID=sa;Password={v};"', letters16),
        ("X-Goog-Signature={v}", lambda: draw(random, HEX, 128)),
        ('"private_key_id": "{v}"', hex40),
        ('"refresh_token": "{v}"', lambda: "1/" + "/0" + draw(random, URL_SAFE, 60)),
        (
            "age: {v}",
            lambda: (
                "AG"
                + "E-SECRET-KEY-1"
                + "".join(random.choices("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", k=58))
            ),
        ),
        ('passphrase="{v}"', lambda: "correct horse battery staple"),
        ("LDAP bind password: {v}", letters16),
        ('redis.Redis(host="h", password="{v}")', letters16),
        (
            '"AZURE_STORAGE_CONNECTION_STRING=AccountName=x;AccountKey={v}=="',
            lambda: draw(random, BASE64, 86),
        ),
        ("Proxy: http://{v}:@proxy:3128", letters32),
        ("webhook: https://outlook.webhook.office.com/hook?sig={v}", safe43),
        ('sops: {{"mac": "x", "DATABASE_PASSWORD": "{v}"}}', letters16),
    ]
    texts = []
    for context, draw_value in contexts:
        value = draw_value()
        texts.append((context.format(v=value), value))
    return texts


def draw_key(size: int, seed: int = 5) -> str:
    """Draw a base64 text of this size, the same in every call."""
    return draw(Random(seed), BASE64, size)
