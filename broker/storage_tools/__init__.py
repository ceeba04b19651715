"""Tools for log files on a stopped broker: dump, verify, rebuild indexes."""
