CREATE TABLE kept (began REAL NOT NULL, until REAL NOT NULL);
CREATE TABLE component (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    is_gpu INTEGER NOT NULL, bdf TEXT NOT NULL, seen REAL NOT NULL);
CREATE TABLE job (id INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL,
    began REAL NOT NULL, ended REAL NOT NULL);
CREATE TABLE part (job INTEGER NOT NULL, component INTEGER NOT NULL, compared REAL NOT NULL,
    slow REAL NOT NULL, PRIMARY KEY (job, component)) WITHOUT ROWID;
CREATE TABLE part_count (job INTEGER NOT NULL, component INTEGER NOT NULL, mark TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (job, component, mark)) WITHOUT ROWID;
CREATE TABLE day_count (day INTEGER NOT NULL, component INTEGER NOT NULL, mark TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (day, component, mark)) WITHOUT ROWID;
CREATE INDEX job_ended ON job (ended);
-- Later: added to the tables of version 1, in which an earlier gdrtop leaves it alone
CREATE TABLE IF NOT EXISTS loss (day INTEGER NOT NULL, finding TEXT NOT NULL, gpu REAL NOT NULL, seen REAL NOT NULL,
    job REAL NOT NULL, rated REAL NOT NULL, lost REAL NOT NULL, PRIMARY KEY (day, finding)) WITHOUT ROWID;
