"""Steps of tiering at which a broker is killed (`killed_process`), in the order in which they happen."""

from killed_process import both

COPY = (
    *both("StartCopy"),
    *both(r"PUT .*\.log"),
    *both(r"PUT .*\.idx"),
    r"after HEAD .*\.idx",
    r"after HEAD .*\.log",
    *both("FinishCopy"),
    *both("PUT .*/root"),
    "after GET .*/root",
)
PARTS = (
    *both(r"POST .*\.log\?uploads"),
    *both(r"PUT .*\.log\?.*partNumber=1\b.*"),
    *both(r"PUT .*\.log\?.*partNumber=3\b.*"),
    *both(r"POST .*\.log\?uploadId=.*"),
)
REPLACE = (
    r"after GET .*\.log",
    *both("StartCopy replaces"),
    *both("AbandonCopy"),
    *both(r"PUT .*\.log"),
    *both(r"PUT .*\.idx"),
    r"after HEAD .*\.log",
    *both("ReplaceSegments"),
    *both("PUT .*/root"),
)
DELETE = (
    *both("StartRemoteDeletes"),
    *both(r"POST .*\?delete .*\.log .*"),
    *both("ConfirmRemoteDeleted"),
)
SPILL = (*both("StartSpill"), *both(r"PUT .*\.page"), r"after GET .*\.page", *both("SpillEntries"))
TRIM = (
    *both("MoveLogStart"),
    *both("StartSpill"),
    *both(r"PUT .*\.page"),
    *both("TrimPages"),
    *both(r"POST .*\?delete .*\.page"),
    *both("ConfirmRemoteDeleted"),
)
DELETE_PAGE = (
    *both("MoveLogStart"),
    r"after GET .*\.page",
    *both(r"POST .*\?delete .*\.log .*"),
    *both(r"POST .*\?delete .*\.page"),
    *both("ConfirmRemoteDeleted"),
)
DELETE_TOPIC = (
    "before DeleteTopics",
    "after DeleteTopics",
    *both(r"POST .*\?delete .*/root"),
    *both(r"POST .*\?delete .*/topics/.*"),
    *both(r"GET .*prefix=.*manifests.*"),
    *both(r"POST .*\?delete .*\.page"),
    *both(r"POST .*\?delete .*\.log .*"),
    *both("ConfirmRemoteDeleted"),
)
DROP = (
    *both("rename .*/leader-epoch-checkpoint"),
    *both(r"rename .*\.log\.deleted"),
    *both(r"rename .*\.index\.deleted"),
    *both(r"rename .*\.timeindex\.deleted"),
    *both(r"rename .*\.snapshot\.deleted"),
    *both(r"unlink .*\.log\.deleted"),
    *both(r"unlink .*\.index\.deleted"),
    *both(r"unlink .*\.snapshot\.deleted"),
)
