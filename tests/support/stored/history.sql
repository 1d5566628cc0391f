PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE llmb_version (version INTEGER NOT NULL);
INSERT INTO llmb_version VALUES(3);
CREATE TABLE llmb_session (
        id TEXT PRIMARY KEY, started DATETIME NOT NULL, host TEXT NOT NULL, program TEXT NOT NULL,
        options TEXT NOT NULL, git_commit TEXT NOT NULL, ci_url TEXT NOT NULL);
INSERT INTO llmb_session VALUES('20261122-1735-47448f1f33f4','2026-11-22 17:35:31.854939','vm','0.1.0','["-q", "-p", "no:cacheprovider", "--llmb-launch", "-k", "good or slow", "--llmb-cluster=cluster.yaml", "--llmb-history=history.db", "--llmb-json=s.json"]','','');
CREATE TABLE llmb_run (
        id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, started DATETIME, job_id TEXT NOT NULL, fingerprint TEXT NOT NULL,
        recipe TEXT NOT NULL, size TEXT NOT NULL, release TEXT NOT NULL, gpu TEXT NOT NULL, dtype TEXT NOT NULL,
        gpus INTEGER NOT NULL, name TEXT NOT NULL, launcher TEXT NOT NULL, log TEXT NOT NULL,
        attempts INTEGER NOT NULL, nodes TEXT NOT NULL, jobs TEXT NOT NULL, log_fingerprints TEXT NOT NULL,
        environment TEXT NOT NULL);
INSERT INTO llmb_run VALUES(1,'fake_good-24.11-h100-bf16-8','2026-11-22 17:35:32.601660','1','217a-74db0218','fake','good','24.11','h100','bf16',8,'1-fake_good-24.11-h100-bf16-8/1','local','.llmbench/jobs/20261122-1735-5b7a/1-fake_good-24.11-h100-bf16-8/log-pretrain_fake_good_bf16_8_1_0.out',1,'["vm"]','[{"job_id": "1", "purpose": "measure", "attempt": 1, "repeat": 1, "state": "COMPLETED", "nodes": ["vm"], "step_seconds": 1.0, "text": "", "files": []}]','["217a-74db0218"]','{"recipe": "24.11"}');
INSERT INTO llmb_run VALUES(2,'fake_slow-24.11-h100-bf16-8','2026-11-22 17:35:36.187750','4','217a-65bbbe4b','fake','slow','24.11','h100','bf16',8,'4-fake_slow-24.11-h100-bf16-8/4','local','.llmbench/jobs/20261122-1735-5b7a/4-fake_slow-24.11-h100-bf16-8/log-pretrain_fake_slow_bf16_8_4_0.out',1,'["vm"]','[{"job_id": "2", "purpose": "measure", "attempt": 1, "repeat": 1, "state": "COMPLETED", "nodes": ["vm"], "step_seconds": 1.2000000000000002, "text": "", "files": []}, {"job_id": "3", "purpose": "measure", "attempt": 1, "repeat": 2, "state": "COMPLETED", "nodes": ["vm"], "step_seconds": 1.2000000000000002, "text": "", "files": []}, {"job_id": "4", "purpose": "measure", "attempt": 1, "repeat": 3, "state": "COMPLETED", "nodes": ["vm"], "step_seconds": 1.2000000000000002, "text": "", "files": []}]','["217a-65bbbe4b"]','{"recipe": "24.11"}');
CREATE TABLE llmb_verdict (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES llmb_session (id), run INTEGER REFERENCES llmb_run (id),
        configuration TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, status TEXT NOT NULL,
        counts BOOLEAN NOT NULL, run_seconds REAL, step_time_seconds REAL, expected_seconds REAL,
        bound_seconds REAL, log_difference REAL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
        statistic TEXT NOT NULL, baseline TEXT NOT NULL, tolerance TEXT NOT NULL, item TEXT NOT NULL,
        text TEXT NOT NULL, metrics TEXT NOT NULL, mean_of TEXT NOT NULL, step_seconds BLOB NOT NULL, log_sha256 TEXT NOT NULL DEFAULT '[]');
INSERT INTO llmb_verdict VALUES(1,'20261122-1735-47448f1f33f4',1,'fake_good-24.11-h100-bf16-8','PASS','within-tolerance','passed',1,1.0,1.0,1.0,1.0500000000000000444,0.0,11,44,'mean','published','5 %','fake_good-24.11-h100-bf16-8','1.000 s is 0.0 % against 1.000 s (-2.8 to +2.9 %)','{"step_time_seconds": [1.0, 0.0], "step_time_mean_seconds": [1.0, 0.0], "step_time_trimmed_mean_seconds": [1.0, null], "step_time_cv": [0.0, null], "tokens_per_second": [524288.0, null], "tokens_per_second_per_gpu": [65536.0, null], "mfu": [0.00045598742778564207, null], "tflops_per_gpu": [0.45097156608, null], "days_to_1t_tokens": [22.075794361255788, null]}','[]',X'000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f','["dcf17108a4334e7cf76a41b279a447e80ea2201cece740fe787d9d10751b599f"]');
INSERT INTO llmb_verdict VALUES(2,'20261122-1735-47448f1f33f4',2,'fake_slow-24.11-h100-bf16-8','REGRESSION','slower-than-bound','failed',1,1.2000000000000001776,1.2000000000000001776,1.0,1.0500000000000000444,0.18232155679395478653,11,44,'mean','published','5 %','fake_slow-24.11-h100-bf16-8','1.200 s is +20.0 % against 1.000 s (+18.4 to +21.6 %); the bound is 1.050 s; uniform shift; no single step stands out','{"step_time_seconds": [1.2000000000000002, 2.253838089150372e-16], "step_time_mean_seconds": [1.2000000000000002, 2.253838089150372e-16], "step_time_trimmed_mean_seconds": [1.1999999999999997, null], "step_time_cv": [1.8781984076253096e-16, null], "tokens_per_second": [436906.6666666666, null], "tokens_per_second_per_gpu": [54613.33333333333, null], "mfu": [0.00037998952315470164, null], "tflops_per_gpu": [0.3758096383999999, null], "days_to_1t_tokens": [26.490953233506943, null]}','[]',X'333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f333333333333f33f','["a7d6ccda8a310cc71e649faeff1af18c13cde3a314780d3a761f4efbbf2772af"]');
CREATE TABLE llmb_digest (
        configuration TEXT NOT NULL, upto INTEGER NOT NULL, newest_day TEXT NOT NULL, verdicts TEXT NOT NULL,
        PRIMARY KEY (configuration, upto));
CREATE INDEX llmb_run_started ON llmb_run (configuration, started);
CREATE INDEX llmb_run_fingerprint ON llmb_run (fingerprint);
CREATE INDEX llmb_verdict_session ON llmb_verdict (session);
CREATE INDEX llmb_verdict_run ON llmb_verdict (run);
COMMIT;
