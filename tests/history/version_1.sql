BEGIN TRANSACTION;
CREATE TABLE llmb_run (
        id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, started DATETIME, job_id TEXT NOT NULL, fingerprint TEXT NOT NULL,
        recipe TEXT NOT NULL, size TEXT NOT NULL, release TEXT NOT NULL, gpu TEXT NOT NULL, dtype TEXT NOT NULL,
        gpus INTEGER NOT NULL, name TEXT NOT NULL, launcher TEXT NOT NULL, log TEXT NOT NULL,
        attempts INTEGER NOT NULL, nodes TEXT NOT NULL, jobs TEXT NOT NULL, log_fingerprints TEXT NOT NULL,
        environment TEXT NOT NULL);
INSERT INTO "llmb_run" VALUES(1,'grok1_314b-25.05-gb200-bf16-128','2025-11-01 02:00:00.000000','1000','0-00ff','grok1','314b','25.05','gb200','bf16',128,'x_1','sbatch','log-x_1_0.out',1,'[]','[]','["0-00ff"]','{"driver": "580.1"}');
INSERT INTO "llmb_run" VALUES(2,'grok1_314b-25.05-gb200-bf16-128','2025-11-02 02:00:00.000000','1001','1-00ff','grok1','314b','25.05','gb200','bf16',128,'x_1','sbatch','log-x_1_0.out',1,'[]','[]','["1-00ff"]','{}');
CREATE TABLE llmb_session (
        id TEXT PRIMARY KEY, started DATETIME NOT NULL, host TEXT NOT NULL, program TEXT NOT NULL,
        options TEXT NOT NULL, git_commit TEXT NOT NULL, ci_url TEXT NOT NULL);
INSERT INTO "llmb_session" VALUES('20251102-0400-0123456789ab','2025-11-20 06:00:00.000000','ci','0.1.0','["-q"]','abc','');
INSERT INTO "llmb_session" VALUES('20251103-0400-0123456789ab','2025-11-20 06:00:00.000000','ci','0.1.0','["-q"]','','');
CREATE TABLE llmb_verdict (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES llmb_session (id), run INTEGER REFERENCES llmb_run (id),
        configuration TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, status TEXT NOT NULL,
        counts BOOLEAN NOT NULL, run_seconds REAL, step_time_seconds REAL, expected_seconds REAL,
        bound_seconds REAL, log_difference REAL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
        statistic TEXT NOT NULL, baseline TEXT NOT NULL, tolerance TEXT NOT NULL, item TEXT NOT NULL,
        text TEXT NOT NULL, metrics TEXT NOT NULL, mean_of TEXT NOT NULL, step_seconds BLOB NOT NULL);
INSERT INTO "llmb_verdict" VALUES(1,'20251102-0400-0123456789ab',1,'grok1_314b-25.05-gb200-bf16-128','PASS','within-tolerance','passed',1,7.4,7.4,7.325,7.69125,1.01868453069929969234e-02,11,44,'mean','published','5 %','grok1_314b-25.05-gb200-bf16-128','7.4 s is within the tolerance','{"step_time_seconds": [7.4, 0.0741], "mfu": [0.25, null]}','[]',X'9A99999999991D40000000000000F87FA4703D0AD7A31D40');
INSERT INTO "llmb_verdict" VALUES(2,'20251102-0400-0123456789ab',NULL,'grok1_314b-25.05-gb200-fp8-128','MISSING','no-run','skipped',0,NULL,NULL,7.325,7.69125,NULL,11,44,'mean','published','5 %','grok1_314b-25.05-gb200-fp8-128','no run of this configuration','{}','[]',X'');
INSERT INTO "llmb_verdict" VALUES(3,'20251103-0400-0123456789ab',2,'grok1_314b-25.05-gb200-bf16-128','REGRESSION','slower-than-bound','passed',1,8.0,8.0,7.325,7.69125,8.81483867767049594776e-02,11,44,'mean','published','5 %','grok1_314b-25.05-gb200-bf16-128','7.4 s is within the tolerance','{"step_time_seconds": [8.0, 0.0741], "mfu": [0.25, null]}','[]',X'9A99999999991D40000000000000F87FA4703D0AD7A31D40');
CREATE TABLE llmb_version (version INTEGER NOT NULL);
INSERT INTO "llmb_version" VALUES(1);
CREATE INDEX llmb_run_started ON llmb_run (configuration, started);
CREATE INDEX llmb_run_fingerprint ON llmb_run (fingerprint);
CREATE INDEX llmb_verdict_session ON llmb_verdict (session);
CREATE INDEX llmb_verdict_run ON llmb_verdict (run);
COMMIT;
