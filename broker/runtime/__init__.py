"""The async drivers around the pure cores: replicas, waiting requests, fetch sessions, groups, tiering."""
